//! Masks of the next round, made by a background thread while the client waits.

use super::mask::{MaskMaker, Term, chunk_lanes, per_block};
use crate::bits;
use crate::lanes::Lanes;
use crate::prf::{CHUNK_BLOCKS, Prf};
use std::sync::Arc;
use std::thread::JoinHandle;
use zeroize::Zeroizing;

/// What a set of masks was made for; any difference and it is thrown away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub round: u64,
    pub terms: Vec<Term>,
    /// (length, width, offset in the payload) of each segment.
    pub segments: Vec<(usize, u32, usize)>,
    pub bytes: usize,
}

impl Job {
    pub fn new(round: u64, terms: Vec<Term>, lanes: &Lanes) -> Self {
        let segments = lanes.segments.iter().map(|(s, w, at)| (s.len, *w, *at)).collect();
        Job { round, terms, segments, bytes: lanes.bytes }
    }

    /// The signed sum of masks, as a payload-shaped stream.
    fn run(&self, prf: &Prf) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(vec![0u8; self.bytes]);
        let mut base = 0u32;
        for (len, width, at) in &self.segments {
            let mut maker = MaskMaker::new(prf, self.round, *width);
            let step = chunk_lanes(*width);
            let segment = &mut out[*at..*at + bits::packed_len(*len, *width)];
            for (k, chunk) in segment.chunks_mut(bits::packed_len(step, *width)).enumerate() {
                let first = base.wrapping_add((k * CHUNK_BLOCKS) as u32);
                maker.apply(&self.terms, false, first, (len - k * step).min(step), chunk);
            }
            base = base.wrapping_add(len.div_ceil(per_block(*width)) as u32);
        }
        out
    }
}

struct UnderWay {
    job: Job,
    thread: JoinHandle<Zeroizing<Vec<u8>>>,
    /// Whose thread it is.
    process: u32,
}

/// At most one set of masks under way or ready.
#[derive(Default)]
pub struct Ahead(Option<UnderWay>);

impl Ahead {
    /// Starts `job` unless it is the one already under way.
    pub fn start(&mut self, prf: &Arc<Prf>, job: Job) {
        self.forget_after_fork();
        if self.0.as_ref().is_some_and(|current| current.job == job) {
            return;
        }
        let (prf, own, process) = (Arc::clone(prf), job.clone(), std::process::id());
        self.0 = Some(UnderWay { job, thread: std::thread::spawn(move || own.run(&prf)), process });
    }

    /// The masks of `job` if they were made ahead; waits for the thread when it is still running.
    pub fn take(&mut self, job: &Job) -> Option<Zeroizing<Vec<u8>>> {
        self.forget_after_fork();
        let made = self.0.take()?;
        if made.job == *job { made.thread.join().ok() } else { None }
    }

    /// A process forked off has its parent's handle but not its thread: to join or detach that is undefined.
    fn forget_after_fork(&mut self) {
        if self.0.as_ref().is_some_and(|current| current.process != std::process::id()) {
            std::mem::forget(self.0.take());
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.forget_after_fork();
    }
}
