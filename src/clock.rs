//! The clock of leases and deadlines: nanoseconds that never jump and that, on Linux, include the
//! time that the machine was suspended. It starts at each boot.

/// The current time.
#[cfg(target_os = "linux")]
#[inline]
pub fn now() -> u64 {
    #[repr(C)]
    struct Time {
        seconds: std::ffi::c_long,
        nanoseconds: std::ffi::c_long,
    }
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut Time) -> i32;
    }
    const CLOCK_BOOTTIME: i32 = 7;
    let mut time = Time { seconds: 0, nanoseconds: 0 };
    // SAFETY: the function writes to `time`. It fails only for a clock that does not exist.
    unsafe { clock_gettime(CLOCK_BOOTTIME, &raw mut time) };
    (time.seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(time.nanoseconds as u64)
}

/// The current time.
#[cfg(not(target_os = "linux"))]
pub fn now() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    1 + START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_on() {
        let first = now();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(now() >= first + 1_000_000);
    }
}
