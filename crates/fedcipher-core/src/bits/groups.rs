//! Lanes in groups: as many as fit into a block of key stream, from bit 0 of it on.

use super::{BitWriter, lane_mask};

/// The lanes of a 128-bit word, `128 / width` of them from bit 0 on, added and subtracted all at once: top bits
/// are kept apart so that no carry leaves a lane (Warren, Hacker's Delight, section 2-18).
#[derive(Debug, Clone, Copy)]
pub struct Group {
    top: u128,
    low: u128,
}

impl Group {
    #[must_use]
    pub fn new(width: u32) -> Self {
        let top = (1..=128 / width).fold(0, |top, lane| top | 1 << (lane * width - 1));
        let all = u128::MAX >> (128 % width);
        Group { top, low: all & !top }
    }

    /// `a[k] + b[k] mod 2^width`; bits behind the last lane are ignored, and zero in the sum.
    #[inline(always)]
    #[must_use]
    pub fn add(self, a: u128, b: u128) -> u128 {
        (a & self.low).wrapping_add(b & self.low) ^ ((a ^ b) & self.top)
    }

    /// `a[k] - b[k] mod 2^width`.
    #[inline(always)]
    #[must_use]
    pub fn sub(self, a: u128, b: u128) -> u128 {
        ((a & self.low) | self.top).wrapping_sub(b & self.low) ^ ((a ^ !b) & self.top)
    }
}

/// Writes `values[k] * factor mod 2^width` as groups.
pub fn group_scaled(values: &[u32], factor: u64, width: u32, groups: &mut [u128]) {
    // With their number known, a group's lanes are moved by constants and the loop over them is none.
    macro_rules! by_lanes {
        ($($lanes:literal)*) => {
            match 128 / width {
                $($lanes => scaled::<$lanes>(values, factor, width, groups),)*
                lanes => unreachable!("{lanes} lanes of {width} bits"),
            }
        };
    }
    by_lanes!(2 3 4 5 6 7 8 9 10 11 12 14 16 18 21 25 32 42 64);
}

fn scaled<const LANES: usize>(values: &[u32], factor: u64, width: u32, groups: &mut [u128]) {
    let mask = lane_mask(width);
    let lane = |v: &u32| u64::from(*v).wrapping_mul(factor) & mask;
    // Halves of whole lanes are 64 bits at most.
    let half = |values: &[u32]| values.iter().rev().fold(0, |half, v| half << (width % 64) | lane(v));
    let (whole, rest) = values.as_chunks::<LANES>();
    for (group, values) in groups.iter_mut().zip(whole) {
        let (low, high) = values.split_at(LANES / 2);
        let (middle, high) = high.split_at(LANES % 2);
        let bits = LANES as u32 / 2 * width;
        *group = u128::from(half(low)) | u128::from(half(high)) << (bits + middle.len() as u32 * width);
        if let [v] = middle {
            *group |= u128::from(lane(v)) << bits;
        }
    }
    if !rest.is_empty() {
        groups[whole.len()] = rest.iter().rev().fold(0, |group, v| group << width | u128::from(lane(v)));
    }
}

/// Writes `lanes` lanes, which lie in groups, into the stream `out` where they follow one another.
pub fn pack_groups(groups: &[u128], width: u32, lanes: usize, out: &mut [u8]) {
    let per = (128 / width) as usize;
    let used = per as u32 * width;
    let (whole, rest) = (lanes / per, (lanes % per) as u32 * width);
    let mut done = 0;
    if used.is_multiple_of(8) {
        // Each is stored whole; the next one's first bytes lie over what is behind its lanes.
        let bytes = used as usize / 8;
        done = whole.min((out.len() / bytes).saturating_sub(1));
        for (k, group) in groups[..done].iter().enumerate() {
            out[k * bytes..][..16].copy_from_slice(&group.to_le_bytes());
        }
    }
    let mut writer = BitWriter::new(&mut out[done * used as usize / 8..]);
    for group in &groups[done..whole] {
        writer.push(group & (u128::MAX >> (128 - used)), used);
    }
    if rest > 0 {
        writer.push(groups[whole] & ((1 << rest) - 1), rest);
    }
    writer.finish();
}
