//! References on an object: base references and attachments.

use core::alloc::Layout;
use core::ops::{ControlFlow, Deref};

use ksync::atomic::{AtomicBool, Ordering::Relaxed};
use ksync::{CpuPin, HubRef, HubValue, Member, MemberSlot, NewMember, lock_class};
use rust_alloc::sync::Arc;

use super::swept::Name;
use super::{Frames, Kind, Object, Quota, Watch};
use crate::alloc::NoMemory;
use crate::backing::MappedExtent;
use crate::page::hub_of;
use crate::rmap::{Map, ReverseMap};
use crate::{Machine, Vm};

lock_class!(
    /// A shard of an object's reverse map. Held while scans visit page tables.
    pub ReverseLock, "reverse map", rank = 90
);

impl HubValue for Object {
    const MAY_COUNT: bool = !Map::FINDS_EXTENTS;

    fn free_part(&mut self) -> bool {
        self.slots.free_part()
    }

    #[inline(always)]
    fn counts(&self) -> bool {
        !Map::FINDS_EXTENTS && !self.is_freed_while_mapped()
    }
}

/// The hub that contains the object.
pub(crate) type Hub = HubRef<Object, MappedExtent, ReverseLock>;

/// A base reference: held by a file's inode, or by the kernel while it works on the object.
///
/// The last reference of an object must be ended by [`release`](ObjectRef::release), which frees the pages: a plain
/// drop has no access to the allocator. A clone may be dropped while another reference exists.
pub struct ObjectRef(Hub);

impl ObjectRef {
    /// A new object of private memory.
    ///
    /// # Errors
    /// No memory.
    pub fn new_anon<M: Machine>(vm: &Vm<M>) -> Result<ObjectRef, NoMemory> {
        ObjectRef::new(vm, Kind::Anon, None)
    }

    /// A new object of `bytes` of memory that mappings share.
    ///
    /// # Errors
    /// No memory.
    pub fn new_shared<M: Machine>(vm: &Vm<M>, bytes: u64) -> Result<ObjectRef, NoMemory> {
        ObjectRef::new(vm, Kind::Shared(bytes), None)
    }

    /// A new, empty file, whose pages are charged to `quota`.
    ///
    /// # Errors
    /// No memory.
    pub fn new_file<M: Machine>(
        vm: &Vm<M>,
        quota: Option<&'static Quota>,
    ) -> Result<ObjectRef, NoMemory> {
        ObjectRef::new(vm, Kind::File, quota)
    }

    /// A new device of these frames.
    ///
    /// # Errors
    /// No memory.
    pub fn new_device<M: Machine>(vm: &Vm<M>, frames: Frames) -> Result<ObjectRef, NoMemory> {
        ObjectRef::new(vm, Kind::Device(frames), None)
    }

    fn new<M: Machine>(
        vm: &Vm<M>,
        kind: Kind,
        quota: Option<&'static Quota>,
    ) -> Result<ObjectRef, NoMemory> {
        Hub::new(&vm.epoch, Object::new(kind, quota))
            .map(ObjectRef)
            .map_err(|_| NoMemory)
    }

    /// Ends this reference; if it was the last, frees the pages, and may sleep for those that are held busy.
    pub fn release<M: Machine>(self, vm: &Vm<M>) {
        end(vm, self.0);
    }

    /// Whether both name one object.
    pub fn same(&self, other: &ObjectRef) -> bool {
        self.0.same(&other.0)
    }

    /// Attaches an extent. `writes` says whether it is a shared mapping that may be written to: the object counts those.
    pub(crate) fn attach(
        &self,
        extent: MappedExtent,
        writes: bool,
    ) -> Result<Attachment, NoMemory> {
        let member = self.0.attach(extent).map_err(|_| NoMemory)?;
        Ok(Attachment::of(member, self, writes))
    }
}

impl Clone for ObjectRef {
    fn clone(&self) -> ObjectRef {
        ObjectRef(self.0.clone())
    }
}

impl Deref for ObjectRef {
    type Target = Object;
    fn deref(&self) -> &Object {
        &self.0
    }
}

/// Ends a reference. If it was the last, frees the pages first; this is preemptible, because the reference still keeps
/// the object alive. A reference that another CPU makes meanwhile under a pin, by [`Attachment::object_ref`], then
/// refers to an object without pages, and ends without freeing any.
fn end<M: Machine>(vm: &Vm<M>, hub: Hub) {
    if let Err(last) = hub.end_unless_only() {
        last.die(vm);
    }
}

impl Object {
    /// Names a space that has the object attached, if there is one, as sweeper, and queues it. `me` is named no more.
    #[cold]
    fn name_sweeper<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin, me: Name) {
        self.swept.forget_me(me);
        let mut unborn = None;
        let named = hub_of(self).scan(|extent| {
            let pmap = extent.pmap();
            if pmap.waiting().is_unborn() {
                // Its fork may fail, and then nobody would look for its name.
                unborn = Some(pmap.clone());
                return ControlFlow::Continue(());
            }
            self.swept.name(Name::of(pmap));
            vm.queue(pin, pmap);
            ControlFlow::Break(())
        });
        if let (ControlFlow::Continue(()), Some(pmap)) = (named, unborn) {
            self.leave_page(vm, pin, &pmap);
        }
    }
}

/// A layer's membership in its object's hub, which is the layer's reference on the object.
pub struct Attachment {
    slot: MemberSlot<Object, MappedExtent, ReverseLock>,
    /// Whether the object counts it as a writer. Guarded by the map's lock.
    writes: AtomicBool,
}

impl Attachment {
    /// The block that one takes in its object's hub: for tests, which let just that fail.
    pub const BLOCK: Layout = NewMember::<Object, MappedExtent, ReverseLock>::BLOCK;

    fn of(
        member: Member<Object, MappedExtent, ReverseLock>,
        object: &Object,
        writes: bool,
    ) -> Attachment {
        if writes {
            object.writers.fetch_add(1, Relaxed);
        }
        if let Some(watch) = object.watch() {
            let _pin = ksync::pin();
            watch.attached();
        }
        Attachment {
            slot: MemberSlot::new(member),
            writes: AtomicBool::new(writes),
        }
    }

    /// Ends being counted as a writer.
    fn end_writing(&self, pin: &CpuPin) {
        if self.writes.load(Relaxed)
            && let Some(object) = self.object(pin)
        {
            self.writes.store(false, Relaxed);
            object.writers.fetch_sub(1, Relaxed);
        }
    }

    /// The object; `None` once the layer is detached, which the entry's state also shows.
    #[inline(always)]
    pub(crate) fn object<'p>(&self, pin: &'p CpuPin) -> Option<&'p Object> {
        self.slot.hub(pin)
    }

    /// Attaches another extent to the same object, as a writer if this one is. `NoMemory` also if this one is detached.
    pub(crate) fn attach(&self, extent: MappedExtent) -> Result<Attachment, NoMemory> {
        // No pin is held where memory is allocated, so that the thread can wait for memory there.
        let new = NewMember::new(extent).map_err(|_| NoMemory)?;
        let pin = ksync::pin();
        let object = self.object(&pin).ok_or(NoMemory)?;
        let member = self.slot.with(&pin, |member| member.attach_elsewhere(new));
        Ok(Attachment::of(
            member.ok_or(NoMemory)?,
            object,
            self.writes(),
        ))
    }

    /// Whether it is a shared mapping that may be written to, and is not detached.
    pub(crate) fn writes(&self) -> bool {
        self.writes.load(Relaxed)
    }

    /// A base reference; `None` if the layer is detached. Without the map's lock it may refer to an object that has
    /// ended: this still has an identity, but has no pages and accepts none.
    pub(crate) fn object_ref(&self) -> Option<ObjectRef> {
        let pin = ksync::pin();
        self.slot
            .with(&pin, Member::hub_ref)
            .flatten()
            .map(ObjectRef)
    }

    /// See [`Backing::is_sole`](crate::backing::Backing::is_sole).
    pub(crate) fn is_sole(&self) -> bool {
        let pin = ksync::pin();
        self.slot.with(&pin, Member::is_sole).unwrap_or(false)
    }

    /// Ends the attachment; may leave pages of private memory to a sweep, for which it queues another space. Its page-table
    /// entries were removed and flushed before. `unmapped` is false if the whole space ends. Returns what is left to do, which
    /// may sleep, if anything is.
    #[inline]
    pub(crate) fn detach<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        unmapped: bool,
    ) -> Option<Remainder> {
        self.end_writing(pin);
        let object = self.slot.hub(pin);
        let watch = object.and_then(Object::watch).cloned();
        let member = self.slot.take();
        let me = member.as_ref().map(|member| Name::of(member.pmap()));
        let hub = member.and_then(Member::detach);
        if Map::FINDS_EXTENTS
            && let Some((object, me)) = object.zip(me)
            && !hub.as_ref().is_some_and(Hub::is_only)
            && object.is_private()
            && object.swept.needs_name(me, unmapped)
        {
            // Pages that only this attachment reached, or that earlier ones left behind, may now be unreachable.
            object.name_sweeper(vm, pin, me);
        }
        (hub.is_some() || watch.is_some()).then_some(Remainder { hub, watch })
    }

    /// Marks private memory for a sweep: pages of a range that was unmapped stay because other attachments may reach
    /// them.
    pub(crate) fn leave_pages<M: Machine>(&self, vm: &Vm<M>) {
        if !Map::FINDS_EXTENTS {
            return;
        }
        let pin = ksync::pin();
        let pmap = self.slot.with(&pin, |member| member.pmap().clone());
        let object = self.slot.hub(&pin).filter(|object| object.is_private());
        if let (Some(object), Some(pmap)) = (object, pmap) {
            object.leave_page(vm, &pin, &pmap);
        }
    }
}

/// What is left to do when an attachment has ended.
#[must_use]
pub(crate) struct Remainder {
    /// What may be the last reference on the object.
    hub: Option<Hub>,
    watch: Option<Arc<dyn Watch>>,
}

impl Remainder {
    /// If the attachment was the last reference, frees the pages, and may sleep for those that are held busy. No pin is held.
    pub(crate) fn finish<M: Machine>(self, vm: &Vm<M>) {
        if let Some(hub) = self.hub {
            end(vm, hub);
        }
        if let Some(watch) = self.watch {
            watch.detached();
        }
    }
}

impl Drop for Attachment {
    /// An attachment that was made for nothing is not detached before. Of private memory it is that of an unborn space, which
    /// no mark names, or of one that has the object attached elsewhere, too.
    fn drop(&mut self) {
        if self.slot.is_empty() {
            return;
        }
        let pin = ksync::pin();
        self.end_writing(&pin);
        let watch = self.object(&pin).and_then(Object::watch).cloned();
        drop(pin);
        if let Some(watch) = watch {
            watch.detached();
        }
    }
}
