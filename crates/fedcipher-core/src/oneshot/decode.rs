//! Finds the values that are not on the polynomial of most of the others (Berlekamp and Welch, US patent 4,633,470; in
//! the form of Gemmell and Sudan, "Highly resilient correctors for polynomials", 1992). All values are public.

use super::field::Field;
use crate::mac::field::Element;

/// A field.
pub trait Numbers {
    type Number: Copy + PartialEq;
    fn of(&self, small: u64) -> Self::Number;
    fn add(&self, a: Self::Number, b: Self::Number) -> Self::Number;
    fn sub(&self, a: Self::Number, b: Self::Number) -> Self::Number;
    fn mul(&self, a: Self::Number, b: Self::Number) -> Self::Number;
    /// The inverse of a nonzero number.
    fn inverse(&self, a: Self::Number) -> Self::Number;
}

impl Numbers for Field {
    type Number = u64;

    fn of(&self, small: u64) -> u64 {
        small % self.p()
    }

    fn add(&self, a: u64, b: u64) -> u64 {
        Field::add(*self, a, b)
    }

    fn sub(&self, a: u64, b: u64) -> u64 {
        Field::add(*self, a, self.neg(b))
    }

    fn mul(&self, a: u64, b: u64) -> u64 {
        Field::mul(*self, a, b)
    }

    fn inverse(&self, a: u64) -> u64 {
        Field::inverse(*self, a)
    }
}

/// The field of tags.
pub struct Tags;

impl Numbers for Tags {
    type Number = Element;

    fn of(&self, small: u64) -> Element {
        Element::new(small.into())
    }

    fn add(&self, a: Element, b: Element) -> Element {
        a + b
    }

    fn sub(&self, a: Element, b: Element) -> Element {
        a - b
    }

    fn mul(&self, a: Element, b: Element) -> Element {
        a * b
    }

    fn inverse(&self, a: Element) -> Element {
        a.inverse()
    }
}

/// The value at `x` of the polynomial with these coefficients, lowest degree first.
fn at<F: Numbers>(f: &F, polynomial: &[F::Number], x: F::Number) -> F::Number {
    polynomial.iter().rev().fold(f.of(0), |value, c| f.add(f.mul(value, x), *c))
}

/// The indices of `values` that are not on the polynomial of degree below `needed` through all but at most `most` of
/// them; `None` if such a polynomial does not exist. `points` are distinct, and there are at least `needed + 2 most`.
pub fn off<F: Numbers>(
    f: &F,
    points: &[F::Number],
    values: &[F::Number],
    needed: usize,
    most: usize,
) -> Option<Vec<usize>> {
    // Usually all values are consistent.
    let polynomial = fitted(f, points, values, needed, 0).or_else(|| fitted(f, points, values, needed, most))?;
    let off: Vec<usize> = (0..points.len()).filter(|k| at(f, &polynomial, points[*k]) != values[*k]).collect();
    (off.len() <= most).then_some(off)
}

/// The polynomial Q / E. E is monic of degree `most`, Q has degree below `needed + most`, and Q(x) = y E(x) for each
/// point.
fn fitted<F: Numbers>(
    f: &F,
    points: &[F::Number],
    values: &[F::Number],
    needed: usize,
    most: usize,
) -> Option<Vec<F::Number>> {
    let unknown = needed + 2 * most;
    let row = |(x, y): (&F::Number, &F::Number)| {
        let powers: Vec<F::Number> =
            std::iter::successors(Some(f.of(1)), |power| Some(f.mul(*power, *x))).take(needed + most + 1).collect();
        let located = powers[..most].iter().map(|power| f.sub(f.of(0), f.mul(*y, *power)));
        let right = f.mul(*y, powers[most]);
        powers[..needed + most].iter().copied().chain(located).chain([right]).collect::<Vec<_>>()
    };
    let solved = solved(f, points.iter().zip(values).map(row).collect(), unknown)?;
    let (numerator, locator) = solved.split_at(needed + most);
    quotient(f, numerator.to_vec(), locator)
}

/// A solution of linear equations, each with its right side last; `None` if they contradict each other.
fn solved<F: Numbers>(f: &F, mut rows: Vec<Vec<F::Number>>, unknown: usize) -> Option<Vec<F::Number>> {
    let zero = f.of(0);
    let mut pivots = Vec::new();
    for column in 0..unknown {
        let rank = pivots.len();
        let Some(found) = (rank..rows.len()).find(|k| rows[*k][column] != zero) else { continue };
        rows.swap(rank, found);
        let factor = f.inverse(rows[rank][column]);
        rows[rank].iter_mut().for_each(|v| *v = f.mul(*v, factor));
        let pivot = rows[rank].clone();
        for (_, row) in rows.iter_mut().enumerate().filter(|(k, row)| *k != rank && row[column] != zero) {
            let factor = row[column];
            row.iter_mut().zip(&pivot).for_each(|(v, p)| *v = f.sub(*v, f.mul(factor, *p)));
        }
        pivots.push(column);
    }
    if rows[pivots.len()..].iter().any(|row| row[unknown] != zero) {
        return None;
    }
    let mut solution = vec![zero; unknown];
    pivots.iter().zip(&rows).for_each(|(column, row)| solution[*column] = row[unknown]);
    Some(solution)
}

/// `numerator` divided by the monic polynomial with lower coefficients `low`; `None` if a remainder is left.
fn quotient<F: Numbers>(f: &F, mut numerator: Vec<F::Number>, low: &[F::Number]) -> Option<Vec<F::Number>> {
    let degree = low.len();
    for top in (degree..numerator.len()).rev() {
        let factor = numerator[top];
        for (k, c) in low.iter().enumerate() {
            let place = top - degree + k;
            numerator[place] = f.sub(numerator[place], f.mul(factor, *c));
        }
    }
    let quotient = numerator.split_off(degree);
    numerator.iter().all(|c| *c == f.of(0)).then_some(quotient)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check<F: Numbers>(
        f: &F,
        needed: usize,
        most: usize,
        spare: usize,
        coefficients: &[u64],
        wrong: &[(usize, u64)],
    ) {
        let n = needed + 2 * most + spare;
        let polynomial: Vec<_> = coefficients[..needed].iter().map(|c| f.of(*c)).collect();
        let points: Vec<_> = (1..=n as u64).map(|x| f.of(x)).collect();
        let mut values: Vec<_> = points.iter().map(|x| at(f, &polynomial, *x)).collect();
        let mut expected = Vec::new();
        for (place, by) in wrong.iter().take(most) {
            let place = place % n;
            if !expected.contains(&place) {
                values[place] = f.add(values[place], f.of(1 + by % 100));
                expected.push(place);
            }
        }
        expected.sort_unstable();
        assert!(off(f, &points, &values, needed, most) == Some(expected));
    }

    proptest! {
        #[test]
        fn what_is_off_is_found_wherever_it_is(
            needed in 1usize..8, most in 0usize..5, spare in 0usize..4,
            coefficients in prop::collection::vec(any::<u64>(), 8), wrong in prop::collection::vec(any::<(usize, u64)>(), 5),
        ) {
            check(&Field::holding(84 * 1000 + 1).unwrap(), needed, most, spare, &coefficients, &wrong);
            check(&Tags, needed, most, spare, &coefficients, &wrong);
        }

        /// With more wrong values than `most`, no right value is named instead.
        #[test]
        fn of_what_lies_on_no_polynomial_nothing_is_found(
            needed in 1usize..6, most in 0usize..4, values in prop::collection::vec(any::<u64>(), 20),
        ) {
            let f = Field::holding(84 * 1000 + 1).unwrap();
            let n = needed + 2 * most + 3;
            let points: Vec<u64> = (1..=n as u64).collect();
            let values: Vec<u64> = values[..n].iter().map(|v| f.of(*v)).collect();
            if let Some(found) = off(&f, &points, &values, needed, most) {
                // A result has a probability below 2^-34. Then all other values are on one polynomial.
                let kept: Vec<usize> = (0..n).filter(|k| !found.contains(k)).collect();
                prop_assert!(found.len() <= most && kept.len() >= needed + most + 3);
            }
        }
    }
}
