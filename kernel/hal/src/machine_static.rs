//! Statics of the kernel.

/// Declares statics of the kernel.
///
/// In the kernel they are plain statics. On a host each simulated machine has values of its own, so that tests which run at
/// once, and the executions of a model, do not see each other's.
#[macro_export]
macro_rules! machine_static {
    ($($(#[$meta:meta])* $vis:vis static $name:ident: $t:ty = $value:expr;)+) => {$(
        #[cfg(target_os = "none")]
        $(#[$meta])*
        $vis static $name: $t = $value;
        #[cfg(not(target_os = "none"))]
        $(#[$meta])*
        $vis static $name: $crate::sim::PerMachine<$t> = $crate::sim::PerMachine::new(|| $value);
    )+};
}
