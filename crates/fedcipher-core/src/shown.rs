//! Marks secret-dependent decisions whose outcome may be public.

/// `value`, which is public from here on although it follows from a secret. `make constant-time` takes it for public; in
/// every other build this does nothing.
#[inline(always)]
pub(crate) fn shown<T: Copy>(value: T) -> T {
    #[cfg(constant_time)]
    let value = declassified(value);
    value
}

#[cfg(constant_time)]
#[allow(unsafe_code, reason = "memcheck is told by what `examples/constant_time.rs` defines")]
fn declassified<T: Copy>(mut value: T) -> T {
    unsafe extern "Rust" {
        safe fn fedcipher_declassify(at: *mut u8, len: usize);
    }
    fedcipher_declassify(std::ptr::from_mut(&mut value).cast(), size_of::<T>());
    value
}
