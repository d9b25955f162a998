//! References on an object: base references and attachments.

use core::ops::Deref;

use ksync::atomic::Ordering::SeqCst;
use ksync::{CpuPin, HubRef, HubValue, Member, MemberSlot, lock_class};

use super::{Frames, Kind, Object, Quota};
use crate::alloc::NoMemory;
use crate::backing::Place;
use crate::{Machine, Vm};

lock_class!(
    /// A shard of an object's reverse map. Held while page tables are scanned.
    pub ReverseLock, "reverse map", rank = 90
);

impl HubValue for Object {
    fn last(&self) {
        self.orphan.store(true, SeqCst);
    }
}

/// The hub that every object lives in.
pub(crate) type Hub = HubRef<Object, Place, ReverseLock>;

/// A base reference: a file's inode has one, or the kernel while it works on the object.
///
/// The last reference of an object must be ended by [`release`](ObjectRef::release), which frees the pages: a plain
/// drop has no way to the allocator. Dropping a clone while another reference exists is fine.
pub struct ObjectRef(Hub);

impl ObjectRef {
    /// A new object of anonymous memory.
    ///
    /// # Errors
    /// No memory.
    pub fn new_anon<M: Machine>(vm: &Vm<M>) -> Result<ObjectRef, NoMemory> {
        ObjectRef::new(vm, Kind::Anon, None)
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
        if self.0.is_only() {
            // Exact: nobody else can attach or refer to it any more. Preemptible.
            self.0.die(vm, ksync::doze);
            return;
        }
        // Two may end their references at the same time, so look once more, at what a pin keeps from being freed.
        let pin = ksync::pin();
        let object = self.0.pinned(&pin);
        drop(self.0);
        object.die_if_last(vm);
    }

    /// Whether both name one object.
    pub fn same(&self, other: &ObjectRef) -> bool {
        self.0.same(&other.0)
    }

    pub(crate) fn attach(&self, place: Place) -> Result<Attachment, NoMemory> {
        self.0
            .attach(place)
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

/// A layer's membership in its object's hub, which is its reference.
pub struct Attachment(MemberSlot<Object, Place, ReverseLock>);

impl Attachment {
    fn of(member: Member<Object, Place, ReverseLock>) -> Attachment {
        Attachment(MemberSlot::new(member))
    }

    /// The object; `None` once it is detached, which the entry's state tells as well.
    #[inline(always)]
    pub(crate) fn object<'p>(&self, pin: &'p CpuPin) -> Option<&'p Object> {
        self.0.hub(pin)
    }

    /// Attaches another place to the same object.
    pub(crate) fn attach(&self, place: Place) -> Result<Attachment, NoMemory> {
        let pin = ksync::pin();
        let member = self.0.with(&pin, |member| member.attach_elsewhere(place));
        member
            .and_then(Result::ok)
            .map(Attachment::of)
            .ok_or(NoMemory)
    }

    /// A base reference.
    pub(crate) fn object_ref(&self) -> Option<ObjectRef> {
        let pin = ksync::pin();
        self.0.with(&pin, |member| ObjectRef(member.hub_ref()))
    }

    /// See [`Backing::is_sole`](crate::backing::Backing::is_sole).
    pub(crate) fn is_sole(&self) -> bool {
        let pin = ksync::pin();
        self.0.with(&pin, Member::is_sole).unwrap_or(false)
    }

    /// Ends the attachment; if it was the last reference, frees the pages. Its page-table entries are gone and flushed.
    pub(crate) fn detach<M: Machine>(&self, vm: &Vm<M>) {
        let Some(member) = self.0.take() else { return };
        if member.is_sole() {
            // As in `ObjectRef::release`.
            member.hub().die(vm, ksync::doze);
            return;
        }
        let pin = ksync::pin();
        let object = member.hub_pinned(&pin);
        drop(member);
        object.die_if_last(vm);
    }
}
