//! The simulated device: fc_top under Verilator, from a library with the interface of hardware/sim/fc_sim.h.

#![allow(unsafe_code, reason = "a C library is called; each call is as fc_sim.h says")]

use crate::bus::{Bus, Packet, Port, Slverr};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::link::Link;
use crate::{Accelerator, Accelerators, Arithmetic, Usage};
use libloading::Library;
use std::ffi::{c_int, c_long, c_void};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use zeroize::Zeroizing;

/// How the device's surroundings behave (fc_sim_setup).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    pub memory_latency: u32,
    pub refresh_every: u32,
    pub refresh_for: u32,
    pub stall_in: u32,
    pub stall_out: u32,
    pub seed: u64,
}

impl Default for Setup {
    /// A DDR4 controller at 125 MHz: 40 cycles (320 ns) to read back, 44 of each 975 lost to refresh (tRFC 350 ns every
    /// 7.8 us); a beat of 16 bytes a cycle is 2 of its 19 GB/s. No pauses of the host.
    fn default() -> Self {
        Setup { memory_latency: 40, refresh_every: 975, refresh_for: 44, stall_in: 0, stall_out: 0, seed: 1 }
    }
}

/// The library's functions.
struct Calls {
    new: unsafe extern "C" fn(*const Setup) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
    write: unsafe extern "C" fn(*mut c_void, u8, u32) -> c_int,
    read: unsafe extern "C" fn(*mut c_void, u8, *mut u32) -> c_int,
    feed: unsafe extern "C" fn(*mut c_void, c_int, *const u8, usize, c_int),
    forget: unsafe extern "C" fn(*mut c_void),
    run: unsafe extern "C" fn(*mut c_void, u64) -> u64,
    idle: unsafe extern "C" fn(*mut c_void, u64),
    take: unsafe extern "C" fn(*mut c_void, *mut u8, usize, *mut c_int) -> c_long,
    reset: unsafe extern "C" fn(*mut c_void, u32),
    hold: unsafe extern "C" fn(*mut c_void, c_int, c_int),
    left: unsafe extern "C" fn(*mut c_void) -> u32,
    lanes: unsafe extern "C" fn() -> u32,
    /// Keeps the functions where they are.
    _library: Library,
}

/// Where simulated devices come from.
#[derive(Clone)]
pub struct Simulator {
    calls: Arc<Calls>,
    setup: Setup,
}

impl Simulator {
    /// From the library that `make hardware-sim` builds.
    pub fn load(path: &Path, setup: Setup) -> Result<Self> {
        let failed = |reason: String| Error::Library { path: path.display().to_string(), reason };
        // The loader waits for the other end of a pipe. A name without a folder is looked up by the loader itself.
        if path.components().nth(1).is_some() && !path.is_file() {
            return Err(failed("it is not a file".to_owned()));
        }
        // SAFETY: the library's constructors are Verilator's and do nothing but register themselves.
        let library = unsafe { Library::new(path) }.map_err(|e| failed(e.to_string()))?;
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the type is the one that fc_sim.h declares for this name.
                *unsafe { library.get($name) }.map_err(|e| failed(e.to_string()))?
            };
        }
        let calls = Calls {
            new: symbol!(b"fc_sim_new"),
            free: symbol!(b"fc_sim_free"),
            write: symbol!(b"fc_sim_write"),
            read: symbol!(b"fc_sim_read"),
            feed: symbol!(b"fc_sim_feed"),
            forget: symbol!(b"fc_sim_drop"),
            run: symbol!(b"fc_sim_run"),
            idle: symbol!(b"fc_sim_idle"),
            take: symbol!(b"fc_sim_take"),
            reset: symbol!(b"fc_sim_reset"),
            hold: symbol!(b"fc_sim_hold"),
            left: symbol!(b"fc_sim_left"),
            lanes: symbol!(b"fc_sim_lanes"),
            _library: library,
        };
        Ok(Simulator { calls: Arc::new(calls), setup })
    }

    /// Butterflies a cycle of the model.
    #[must_use]
    pub fn lanes(&self) -> u32 {
        // SAFETY: it takes nothing and reads a constant.
        unsafe { (self.calls.lanes)() }
    }

    /// A device that has just been switched on.
    #[must_use]
    pub fn device(&self) -> SimBus {
        // SAFETY: the setup is read during the call only.
        let device = unsafe { (self.calls.new)(&raw const self.setup) };
        SimBus { calls: Arc::clone(&self.calls), device }
    }
}

/// One simulated device.
pub struct SimBus {
    calls: Arc<Calls>,
    device: *mut c_void,
}

// SAFETY: a device is used by its owner only, from one thread at a time; the library keeps nothing outside it.
unsafe impl Send for SimBus {}

impl SimBus {
    /// Pulls the device's reset for so many cycles.
    pub fn reset(&mut self, cycles: u32) {
        // SAFETY: the device is alive until drop.
        unsafe { (self.calls.reset)(self.device, cycles) }
    }

    /// Stops taking the device's outputs: masks (`m_mask`), packets to the host (`m_out`).
    pub fn hold(&mut self, masks: bool, out: bool) {
        for (stream, held) in [(0, masks), (1, out)] {
            // SAFETY: as above.
            unsafe { (self.calls.hold)(self.device, stream, c_int::from(held)) }
        }
    }

    /// The memories for polynomials and the key of which a bit is set, a bit each: `fc_sim_left`.
    pub fn left(&mut self) -> u32 {
        // SAFETY: as above.
        unsafe { (self.calls.left)(self.device) }
    }
}

impl Bus for SimBus {
    fn write(&mut self, address: u8, value: u32) -> Option<std::result::Result<(), Slverr>> {
        // SAFETY: the device is alive until drop.
        match unsafe { (self.calls.write)(self.device, address, value) } {
            0 => Some(Ok(())),
            -1 => None,
            _ => Some(Err(Slverr)),
        }
    }

    fn read(&mut self, address: u8) -> Option<std::result::Result<u32, Slverr>> {
        let mut value = 0;
        // SAFETY: as above; `value` is written during the call only.
        match unsafe { (self.calls.read)(self.device, address, &raw mut value) } {
            0 => Some(Ok(value)),
            -1 => None,
            _ => Some(Err(Slverr)),
        }
    }

    fn send(&mut self, port: Port, beats: &[u8]) {
        // SAFETY: as above; the library copies whole beats of what lies there.
        unsafe { (self.calls.feed)(self.device, port as c_int, beats.as_ptr(), beats.len() / 16, 1) }
    }

    fn receive(&mut self) -> Option<Packet> {
        // A decrypted ciphertext is the longest packet: a beat a coefficient.
        let mut bytes = Zeroizing::new(vec![0u8; 16 * 4096]);
        let mut aborted = 0;
        // SAFETY: as above; at most `bytes.len()` are written.
        let len = unsafe { (self.calls.take)(self.device, bytes.as_mut_ptr(), bytes.len(), &raw mut aborted) };
        let len = usize::try_from(len).ok()?;
        bytes.truncate(len);
        Some(Packet { bytes, aborted: aborted != 0 })
    }

    fn drop_packets(&mut self) {
        // SAFETY: as above.
        unsafe { (self.calls.forget)(self.device) }
    }

    fn wait(&mut self, cycles: u64) {
        // SAFETY: as above.
        unsafe { (self.calls.run)(self.device, cycles) };
    }

    fn idle(&mut self, cycles: u64) {
        // SAFETY: as above.
        unsafe { (self.calls.idle)(self.device, cycles) }
    }
}

impl Drop for SimBus {
    fn drop(&mut self) {
        // SAFETY: nothing uses the device after this.
        unsafe { (self.calls.free)(self.device) }
    }
}

/// Simulated devices, one per key, and their total usage.
pub struct SimAccelerators {
    simulator: Simulator,
    link: Link,
    fall_back: bool,
    total: Mutex<Usage>,
    tell: Option<Tell>,
}

/// Told what devices do, as they do it.
pub type Tell = Box<dyn Fn(&Usage) + Send + Sync>;

impl SimAccelerators {
    #[must_use]
    pub fn new(simulator: Simulator, link: Link, fall_back: bool) -> Self {
        SimAccelerators { simulator, link, fall_back, total: Mutex::new(Usage::default()), tell: None }
    }

    /// Reports usage to `tell`.
    #[must_use]
    pub fn told(self, tell: Tell) -> Self {
        SimAccelerators { tell: Some(tell), ..self }
    }

    /// The total usage of all devices.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.total.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Accelerators for SimAccelerators {
    fn open(&self, arithmetic: &Arithmetic, secret: &[u8]) -> fedcipher_core::Result<Box<dyn Accelerator>> {
        Ok(Box::new(Driver::open(self.simulator.device(), self.link, arithmetic, secret)?))
    }

    fn fall_back(&self) -> bool {
        self.fall_back
    }

    fn done(&self, usage: &Usage) {
        let mut total = self.total.lock().unwrap_or_else(PoisonError::into_inner);
        *total = total.plus(usage);
        if let Some(tell) = &self.tell {
            tell(usage);
        }
    }
}
