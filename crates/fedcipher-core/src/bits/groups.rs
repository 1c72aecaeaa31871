//! Lanes in groups: as many as fit into a block of key stream, from bit 0 of it on. What the bits behind them are has
//! no meaning.

use super::{BitWriter, add, lane_mask};
use multiversion::multiversion;

/// `acc[k] + x[k] mod 2^width` for the lanes of as many groups.
pub fn add_groups(acc: &mut [[u8; 16]], x: &[[u8; 16]], width: u32) {
    add::combine(acc.as_flattened_mut(), x.as_flattened(), add::group_tops(width), add::add_words);
}

/// `acc[k] - x[k] mod 2^width`.
pub fn sub_groups(acc: &mut [[u8; 16]], x: &[[u8; 16]], width: u32) {
    add::combine(acc.as_flattened_mut(), x.as_flattened(), add::group_tops(width), add::sub_words);
}

/// Writes `values[k] * factor mod 2^width` as groups.
pub fn group_scaled(values: &[u32], factor: u64, width: u32, groups: &mut [[u8; 16]]) {
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

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl+bmi2", "x86_64+avx2+bmi2"))]
fn scaled<const LANES: usize>(values: &[u32], factor: u64, width: u32, groups: &mut [[u8; 16]]) {
    let mask = lane_mask(width);
    let lane = |v: &u32| u64::from(*v).wrapping_mul(factor) & mask;
    // Halves of whole lanes are 64 bits at most.
    let half = |values: &[u32]| values.iter().rev().fold(0, |half, v| half << (width % 64) | lane(v));
    let (whole, rest) = values.as_chunks::<LANES>();
    for (group, values) in groups.iter_mut().zip(whole) {
        let (low, high) = values.split_at(LANES / 2);
        let (middle, high) = high.split_at(LANES % 2);
        let bits = LANES as u32 / 2 * width;
        let mut all = u128::from(half(low)) | u128::from(half(high)) << (bits + middle.len() as u32 * width);
        if let [v] = middle {
            all |= u128::from(lane(v)) << bits;
        }
        *group = all.to_le_bytes();
    }
    if !rest.is_empty() {
        let all = rest.iter().rev().fold(0, |all: u128, v| all << width | u128::from(lane(v)));
        groups[whole.len()] = all.to_le_bytes();
    }
}

/// Writes `lanes` lanes, which lie in groups, into the stream `out` where they follow one another.
pub fn pack_groups(groups: &[[u8; 16]], width: u32, lanes: usize, out: &mut [u8]) {
    let per = (128 / width) as usize;
    let used = per as u32 * width;
    let (whole, rest) = (lanes / per, (lanes % per) as u32 * width);
    let mut done = 0;
    if used.is_multiple_of(8) {
        // Each is stored whole; the next one's first bytes lie over what is behind its lanes.
        let bytes = used as usize / 8;
        done = whole.min((out.len() / bytes).saturating_sub(1));
        for (k, group) in groups[..done].iter().enumerate() {
            out[k * bytes..][..16].copy_from_slice(group);
        }
    }
    let mut writer = BitWriter::new(&mut out[done * used as usize / 8..]);
    for group in &groups[done..whole] {
        writer.push(u128::from_le_bytes(*group) & (u128::MAX >> (128 - used)), used);
    }
    if rest > 0 {
        writer.push(u128::from_le_bytes(groups[whole]) & ((1 << rest) - 1), rest);
    }
    writer.finish();
}
