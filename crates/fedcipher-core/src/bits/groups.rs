//! Lanes in groups. A group is one 128-bit block of key stream: it holds as many lanes as fit, from bit 0 on. The bits
//! after the last lane have no meaning.

use super::{BitWriter, lane_mask, regroup, scale, up};
use multiversion::multiversion;

/// Writes `values[k] * factor mod 2^width` as groups. Each value must be below 2^width. The function may overwrite
/// `values` with the products.
pub fn group_scaled(values: &mut [u32], factor: u64, width: u32, groups: &mut [[u8; 16]]) {
    // Products of at most 32 bits fit in place, and are computed a vector at a time.
    if factor != 1 && width <= 32 {
        scale(values, factor as u32, lane_mask(width) as u32);
    }
    let done = regroup::group(values, width, groups);
    let (values, groups) = (&values[done * (128 / width) as usize..], &mut groups[done..]);
    // For a constant number of lanes, the compiler unrolls the loop and shifts by constants.
    macro_rules! by_lanes {
        ($($lanes:literal)*) => {
            match 128 / width {
                $($lanes => scaled::<$lanes>(values, factor, width, groups),)*
                lanes => unreachable!("{lanes} lanes of {width} bits"),
            }
        };
    }
    by_lanes!(2 3 4 5 6 7 8 9 10 11 12 14 16 18 21 25 32 42 64 128);
}

// Vectors of 512 bits are slower here.
#[multiversion(targets("x86_64+avx2+bmi2"))]
fn scaled<const LANES: usize>(values: &[u32], factor: u64, width: u32, groups: &mut [[u8; 16]]) {
    let mask = lane_mask(width);
    // A group has at most three lanes if they are wider than 32 bits. Only then are products not computed yet.
    let lane = |v: &u32| if LANES > 3 { u64::from(*v) } else { u64::from(*v).wrapping_mul(factor) & mask };
    let join = |values: &[u32]| values.iter().rev().fold(0, |all, v| all << (width % 64) | lane(v));
    // The middle lane begins in the last bits of the lower half, or with the higher half.
    let begins = LANES as u32 / 2 * width;
    let ends = (begins + width).saturating_sub(64);
    let (whole, rest) = values.as_chunks::<LANES>();
    for (group, values) in groups.iter_mut().zip(whole) {
        let middle = lane(&values[LANES / 2]);
        let low = join(&values[..LANES / 2]) | middle << (begins - 1) << 1;
        let high = middle >> ((64 - begins) % 64) | join(&values[LANES / 2 + 1..]) << (ends % 64);
        *group = (u128::from(low) | u128::from(high) << 64).to_le_bytes();
    }
    if !rest.is_empty() {
        let all = rest.iter().rev().fold(0, |all: u128, v| all << width | u128::from(lane(v)));
        groups[whole.len()] = all.to_le_bytes();
    }
}

/// Writes the first `lanes` lanes of some groups into the stream `out`, without the bits between groups.
pub fn pack_groups(groups: &[[u8; 16]], width: u32, lanes: usize, out: &mut [u8]) {
    let per = (128 / width) as usize;
    let (whole, rest) = (lanes / per, (lanes % per) as u32 * width);
    let mut writer = write(&groups[..whole], per as u32 * width, out);
    if rest > 0 {
        writer.push(u128::from_le_bytes(groups[whole]) & ((1 << rest) - 1), rest);
    }
    writer.finish();
}

/// Writes the first `bits` bits of each group.
pub fn pack_first(groups: &[[u8; 16]], bits: u32, out: &mut [u8]) {
    write(groups, bits, out).finish();
}

/// Writes the first `used` bits of each group, and returns the writer that stands after them.
fn write<'a>(groups: &[[u8; 16]], used: u32, out: &'a mut [u8]) -> BitWriter<'a> {
    // Eight groups end on a byte boundary. The rest of the stream begins there.
    let mut done = 0;
    if used >= 72 {
        done = regroup::join(groups, used, out);
        done += join(&groups[done..], used, &mut out[done * used as usize / 8..]) / 8 * 8;
    }
    let mut writer = BitWriter::new(&mut out[done * used as usize / 8..]);
    for group in &groups[done..] {
        writer.push(u128::from_le_bytes(*group) & (u128::MAX >> (128 - used)), used);
    }
    writer
}

/// Writes the first `used` bits (72 or more) of each group into the stream `out`, for as many groups as `out` has room
/// for. May overwrite the bytes behind the last group. Returns the number of groups.
#[multiversion(targets("x86_64+bmi2"))]
fn join(groups: &[[u8; 16]], used: u32, out: &mut [u8]) -> usize {
    if used.is_multiple_of(8) {
        for (k, group) in groups.iter().enumerate() {
            let Some(place) = out.get_mut(k * used as usize / 8..).and_then(|rest| rest.first_chunk_mut()) else {
                return k;
            };
            *place = *group;
        }
        return groups.len();
    }
    let mut before = 0u64;
    for (k, group) in groups.iter().enumerate() {
        let at = k * used as usize;
        let Some(place) = out.get_mut(at / 8..).and_then(|rest| rest.first_chunk_mut()) else { return k };
        let (shift, group) = (at as u32 % 8, u128::from_le_bytes(*group));
        // The first byte holds the last bits of the group before. The next store overwrites the bits after this group.
        let shared = before >> ((used - 64 - shift) % 64);
        *place = (up(group, shift) | u128::from(shared)).to_le_bytes();
        before = (group >> 64) as u64 & (u64::MAX >> ((128 - used) % 64));
    }
    groups.len()
}
