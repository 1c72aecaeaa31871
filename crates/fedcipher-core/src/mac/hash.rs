//! The polynomial behind a tag: `sum r^(i+1) m_i` over the words of an update, piece by piece.
//!
//! A word is one field, or two fields of at most 16 bits: the head-room that keeps fields of a sum apart keeps
//! words of a sum apart, so the polynomial of a sum is the sum of the polynomials. The exponent of a word follows
//! from the place of its first field in the update, whatever pieces the update is cut into.

use super::dot::{self, WORDS};
use super::field::Element;
use crate::bits::lane_mask;
use aligned_vec::ABox;
use multiversion::multiversion;
use zeroize::Zeroize;

/// Fields that make [`HALF`] words of two: field k with field k + HALF.
pub const GROUP: usize = 256;
const HALF: usize = GROUP / 2;
/// Fields up to this width share a word with another.
const PAIRED: u32 = 16;
/// The key of one round's polynomial with its tables, wiped when dropped.
pub struct Powers {
    r: Element,
    /// r^512 and r^1024: from one block to the next.
    steps: [Element; 2],
    /// Of words of a single field, and of two.
    single: dot::Powers,
    paired: dot::Powers,
}

impl Powers {
    pub fn new(r: Element) -> Self {
        let step = r.power(WORDS as u64);
        let [single, paired] = [0, HALF as u64].map(|skipped| dot::Powers::new(r, HALF, skipped));
        Powers { r, steps: [step, step * step], single, paired }
    }
}

impl Drop for Powers {
    fn drop(&mut self) {
        self.r.zeroize();
        self.steps.zeroize();
    }
}

/// The polynomial over a run of one segment's fields, in order, from field `start` of the update on.
///
/// Runs are given in multiples of [`GROUP`] fields but for the last of a segment; every cut that a scheme makes
/// is one.
pub struct Hasher<'a> {
    powers: &'a Powers,
    paired: bool,
    width: u32,
    /// r to the place of the next field.
    base: Element,
    sum: Element,
    words: ABox<[u32; WORDS]>,
}

impl<'a> Hasher<'a> {
    /// `width` bits hold a field of any sum.
    pub fn new(powers: &'a Powers, width: u32, start: usize) -> Self {
        let base = powers.r.power(start as u64);
        let words = ABox::new(0, [0; WORDS]);
        Hasher { powers, paired: width <= PAIRED, width, base, sum: Element::default(), words }
    }

    /// Fields of a block.
    fn block(&self) -> usize {
        if self.paired { 2 * WORDS } else { WORDS }
    }

    fn advance(&mut self, fields: usize) {
        let whole = fields == self.block();
        let step = if whole { self.powers.steps[usize::from(self.paired)] } else { self.powers.r.power(fields as u64) };
        self.base = self.base * step;
    }

    /// One client's fields, which have at most 25 bits, and no more than a sum's.
    pub fn fields(&mut self, fields: &[u32]) {
        for block in fields.chunks(self.block()) {
            let hash = if self.paired {
                let used = pair(block, self.width, &mut self.words);
                self.powers.paired.dot(&self.words[..used], u32::BITS)
            } else {
                self.powers.single.dot(block, self.width)
            };
            self.sum += self.base * hash;
            self.advance(block.len());
        }
    }

    /// Fields of a sum.
    pub fn sums(&mut self, fields: &[u64]) {
        for block in fields.chunks(self.block()) {
            let mut hash = if self.paired {
                let mut narrow = [0u32; 2 * WORDS];
                halves(block, 0, &mut narrow);
                let used = pair(&narrow[..block.len()], self.width, &mut self.words);
                self.powers.paired.dot(&self.words[..used], u32::BITS)
            } else {
                halves(block, 0, &mut *self.words);
                self.powers.single.dot(&self.words[..block.len()], self.width)
            };
            if self.width > 32 {
                // The bits beyond 32 use the same powers a second time.
                halves(block, 32, &mut *self.words);
                hash += self.powers.single.dot(&self.words[..block.len()], self.width).times_power_of_two(32);
            }
            self.sum += self.base * hash;
            self.advance(block.len());
        }
    }

    #[must_use]
    pub fn finish(self) -> Element {
        self.sum
    }
}

impl Drop for Hasher<'_> {
    fn drop(&mut self) {
        self.words.zeroize();
        self.base.zeroize();
    }
}

/// The 32 bits from bit `from` on of each sum.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn halves(sums: &[u64], from: u32, halves: &mut [u32]) {
    halves.iter_mut().zip(sums).for_each(|(half, sum)| *half = (*sum >> from) as u32);
}

/// The same number of fields `HALF` further on beside each field of a group.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn pair_groups(groups: &[[u32; GROUP]], width: u32, slots: &mut [[u32; HALF]]) {
    let mask = lane_mask(width) as u32;
    for (slot, group) in slots.iter_mut().zip(groups) {
        for k in 0..HALF {
            slot[k] = (group[k] & mask) | ((group[k + HALF] & mask) << width);
        }
    }
}

/// Two fields a word; a group that is not full is filled with zeros. Words used.
fn pair(fields: &[u32], width: u32, words: &mut [u32; WORDS]) -> usize {
    let mask = lane_mask(width) as u32;
    let (groups, rest) = fields.as_chunks::<GROUP>();
    let (slots, _) = words.as_chunks_mut::<HALF>();
    pair_groups(groups, width, slots);
    if rest.is_empty() {
        return groups.len() * HALF;
    }
    let slot = &mut slots[groups.len()];
    for (k, word) in slot.iter_mut().enumerate() {
        let field = |k: usize| rest.get(k).copied().unwrap_or(0) & mask;
        *word = field(k) | (field(k + HALF) << width);
    }
    (groups.len() + 1) * HALF
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    /// The polynomial as it is defined, a word at a time.
    fn slow(r: Element, width: u32, start: usize, fields: &[u64]) -> Element {
        let word = |k: usize| fields.get(k).map_or(0, |x| u128::from(*x));
        let power = |k: usize| r.power((start + k + 1) as u64);
        if width > PAIRED {
            return (0..fields.len()).map(|k| power(k) * Element::new(word(k))).sum();
        }
        let first = |k: usize| k % GROUP < HALF;
        let paired = (0..fields.len()).filter(|k| first(*k));
        paired
            .map(|k| {
                // The last group may end before its second half begins.
                let second = if k / GROUP == (k + HALF) / GROUP { word(k + HALF) } else { 0 };
                power(k) * Element::new(word(k) | second << width)
            })
            .sum()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn fast_is_slow_whatever_the_cuts(
            width in 2u32..=63, len in 0usize..5000, start in 0usize..1 << 36, cut in 1usize..12, seed in any::<u64>(),
        ) {
            let mut rng = StdRng::seed_from_u64(seed);
            let r = Element::new(rng.random());
            let powers = Powers::new(r);
            let fields: Vec<u64> = (0..len).map(|_| rng.random::<u64>() & lane_mask(width)).collect();
            let mut hasher = Hasher::new(&powers, width, start);
            fields.chunks(cut * GROUP).for_each(|run| hasher.sums(run));
            let want = slow(r, width, start, &fields);
            prop_assert_eq!(hasher.finish(), want);
            // The same in pieces, each with a hasher of its own.
            let piece = 7 * GROUP;
            let parts = fields.chunks(piece).enumerate().map(|(k, run)| {
                let mut hasher = Hasher::new(&powers, width, start + k * piece);
                hasher.sums(run);
                hasher.finish()
            });
            prop_assert_eq!(parts.sum::<Element>(), want);
            if width <= 24 {
                let narrow: Vec<u32> = fields.iter().map(|x| *x as u32).collect();
                let mut hasher = Hasher::new(&powers, width, start);
                narrow.chunks(cut * GROUP).for_each(|run| hasher.fields(run));
                prop_assert_eq!(hasher.finish(), want);
            }
        }

        /// The basis of the construction: sums of polynomials are polynomials of sums.
        #[test]
        fn the_polynomial_is_linear(bits in 4u32..=24, head in 0u32..=20, len in 1usize..3000, seed in any::<u64>()) {
            let width = bits + head;
            let mut rng = StdRng::seed_from_u64(seed);
            let powers = Powers::new(Element::new(rng.random()));
            let mut field = |_| rng.random::<u32>() & lane_mask(bits) as u32;
            let (a, b): (Vec<u32>, Vec<u32>) = ((0..len).map(&mut field).collect(), (0..len).map(&mut field).collect());
            // As many clients as the head-room holds, all like b but one.
            let weight = lane_mask(head).max(1);
            let weight = if head == 0 { 0 } else { weight - 1 };
            let sums: Vec<u64> = a.iter().zip(&b).map(|(a, b)| u64::from(*a) + weight * u64::from(*b)).collect();
            let hash = |fields: &[u32]| {
                let mut hasher = Hasher::new(&powers, width, 9);
                hasher.fields(fields);
                hasher.finish()
            };
            let mut of_sum = Hasher::new(&powers, width, 9);
            of_sum.sums(&sums);
            prop_assert_eq!(of_sum.finish(), hash(&a) + Element::new(u128::from(weight)) * hash(&b));
        }
    }

    #[test]
    fn the_largest_fields_do_not_overflow() {
        let powers = Powers::new(Element::new(u128::MAX - 5));
        for width in [PAIRED, PAIRED + 1, 22, 23, 32, 63] {
            let sums = [lane_mask(width); 3 * WORDS];
            let mut hasher = Hasher::new(&powers, width, 0);
            hasher.sums(&sums);
            assert_eq!(hasher.finish(), slow(Element::new(u128::MAX - 5), width, 0, &sums), "{width}");
        }
    }
}
