//! References on an object: base references and attachments.

use core::ops::{ControlFlow, Deref};

use ksync::{CpuPin, HubRef, HubValue, Member, MemberSlot, lock_class};

use super::{Frames, Kind, Object, Quota, Swept};
use crate::alloc::NoMemory;
use crate::backing::MappedExtent;
use crate::page::hub_of;
use crate::{Machine, Vm};

lock_class!(
    /// A shard of an object's reverse map. Held while scans visit page tables.
    pub ReverseLock, "reverse map", rank = 90
);

impl HubValue for Object {
    fn free_part(&mut self) -> bool {
        self.slots.free_part()
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

    /// Ends this reference; if it was the last, frees the pages.
    pub fn release<M: Machine>(self, vm: &Vm<M>) {
        end(vm, self.0);
    }

    /// Whether both name one object.
    pub fn same(&self, other: &ObjectRef) -> bool {
        self.0.same(&other.0)
    }

    pub(crate) fn attach(&self, extent: MappedExtent) -> Result<Attachment, NoMemory> {
        self.0
            .attach(extent)
            .map(Attachment::of)
            .map_err(|_| NoMemory)
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

/// A layer's membership in its object's hub, which is the layer's reference on the object.
pub struct Attachment(MemberSlot<Object, MappedExtent, ReverseLock>);

impl Attachment {
    fn of(member: Member<Object, MappedExtent, ReverseLock>) -> Attachment {
        Attachment(MemberSlot::new(member))
    }

    /// The object; `None` once the layer is detached, which the entry's state also shows.
    #[inline(always)]
    pub(crate) fn object<'p>(&self, pin: &'p CpuPin) -> Option<&'p Object> {
        self.0.hub(pin)
    }

    /// Attaches another extent to the same object.
    pub(crate) fn attach(&self, extent: MappedExtent) -> Result<Attachment, NoMemory> {
        let pin = ksync::pin();
        let member = self.0.with(&pin, |member| member.attach_elsewhere(extent));
        member
            .and_then(Result::ok)
            .map(Attachment::of)
            .ok_or(NoMemory)
    }

    /// A base reference; `None` if the layer is detached. Without the map's lock it may refer to an object that has
    /// ended: this still has an identity, but has no pages and accepts none.
    pub(crate) fn object_ref(&self) -> Option<ObjectRef> {
        let pin = ksync::pin();
        self.0.with(&pin, Member::hub_ref).flatten().map(ObjectRef)
    }

    /// See [`Backing::is_sole`](crate::backing::Backing::is_sole).
    pub(crate) fn is_sole(&self) -> bool {
        let pin = ksync::pin();
        self.0.with(&pin, Member::is_sole).unwrap_or(false)
    }

    /// Ends the attachment; if it was the last reference, frees the pages. Its page-table entries were removed and
    /// flushed before. `unmapped` is false if the whole space ends.
    pub(crate) fn detach<M: Machine>(&self, vm: &Vm<M>, unmapped: bool) {
        let pin = ksync::pin();
        let (object, member) = (self.0.hub(&pin), self.0.take());
        let hub = member.and_then(Member::detach);
        if let Some(object) = object.filter(|object| object.is_private())
            && !hub.as_ref().is_some_and(Hub::is_only)
            && (unmapped || !object.is_swept(Swept::Whole))
        {
            // Pages that only this attachment reached, or that earlier ones left behind, may now be unreachable.
            let other = hub_of(object).scan(|extent| ControlFlow::Break(extent.pmap().clone()));
            if let ControlFlow::Break(pmap) = other {
                object.leave_page(vm, &pin, &pmap);
            }
        }
        drop(pin);
        if let Some(hub) = hub {
            end(vm, hub);
        }
    }

    /// Marks private memory for a sweep: pages of a range that was unmapped stay because other attachments may reach
    /// them.
    pub(crate) fn leave_pages<M: Machine>(&self, vm: &Vm<M>) {
        let pin = ksync::pin();
        let pmap = self.0.with(&pin, |member| member.pmap().clone());
        let object = self.0.hub(&pin).filter(|object| object.is_private());
        if let (Some(object), Some(pmap)) = (object, pmap) {
            object.leave_page(vm, &pin, &pmap);
        }
    }
}
