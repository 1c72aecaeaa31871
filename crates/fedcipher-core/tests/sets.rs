//! The rule of sets, against exact linear algebra: nothing that follows from the sums of one memory speaks of fewer
//! than `k` clients. `make attack` raises the number of tries.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use fedcipher_core::Error;
use fedcipher_core::sets::{Name, SetMemory};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

fn tries() -> u64 {
    std::env::var("FEDCIPHER_ATTACK_TRIES").ok().and_then(|n| n.parse().ok()).unwrap_or(3000)
}

/// A seed, for a failure's message, and what it draws.
fn seeded() -> (u64, StdRng) {
    let seed = std::env::var("FEDCIPHER_ATTACK_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or_else(rand::random);
    (seed, StdRng::seed_from_u64(seed))
}

/// The rank over the rationals of `sets` as rows, without the columns of `without`: elimination without fractions.
fn rank(sets: &[Vec<Name>], clients: Name, without: &[Name]) -> usize {
    let columns: Vec<Name> = (0..clients).filter(|client| !without.contains(client)).collect();
    let row = |set: &Vec<Name>| columns.iter().map(|client| i128::from(set.contains(client))).collect();
    let mut rows: Vec<Vec<i128>> = sets.iter().map(row).collect();
    let (mut rank, mut last) = (0, 1);
    for column in 0..columns.len() {
        let Some(pivot) = (rank..rows.len()).find(|row| rows[*row][column] != 0) else { continue };
        rows.swap(rank, pivot);
        let top = rows[rank].clone();
        for row in &mut rows[rank + 1..] {
            let factor = row[column];
            // Bareiss: every quotient is a minor of the matrix, so it is whole and small.
            row.iter_mut().zip(&top).for_each(|(value, above)| *value = (*value * top[column] - factor * above) / last);
        }
        last = top[column];
        rank += 1;
    }
    rank
}

/// Each way to choose `size` of `from`.
fn choices(from: &[Name], size: usize) -> Vec<Vec<Name>> {
    let Some((first, rest)) = from.split_first().filter(|_| size > 0) else {
        return if size == 0 { vec![Vec::new()] } else { Vec::new() };
    };
    let with = choices(rest, size - 1).into_iter().map(|chosen| [&[*first][..], &chosen].concat());
    with.chain(choices(rest, size)).collect()
}

/// The clients of a combination of `sets` that concerns fewer than `k` clients, apart from the exempt.
fn set_apart(sets: &[Vec<Name>], clients: Name, k: u64, exempt: &[Name]) -> Option<Vec<Name>> {
    let honest: Vec<Name> = (0..clients).filter(|client| !exempt.contains(client)).collect();
    let whole = rank(sets, clients, exempt);
    let few = (k as usize - 1).min(honest.len());
    choices(&honest, few).into_iter().find(|few| rank(sets, clients, &[few.as_slice(), exempt].concat()) < whole)
}

fn random_set(random: &mut StdRng, clients: Name, near: Option<&Vec<Name>>) -> Vec<Name> {
    let mut set: Vec<Name> = match near {
        // A set that was asked for, with some in or out: a retry, a late client, one that lied.
        Some(near) => {
            let changed: Vec<Name> = (0..random.random_range(0..5)).map(|_| random.random_range(0..clients)).collect();
            (0..clients).filter(|client| near.contains(client) != changed.contains(client)).collect()
        }
        None => {
            let share = random.random_range(0.2..1.0);
            (0..clients).filter(|_| random.random_bool(share)).collect()
        }
    };
    if set.is_empty() {
        set.push(random.random_range(0..clients));
    }
    set
}

#[test]
fn three_sets_whose_pairs_differ_enough_still_give_one_client() {
    let mut memory = SetMemory::new(3).unwrap();
    let sets: [&[Name]; 3] = [&[1, 2, 3, 7], &[1, 2, 3, 4, 5, 6], &[4, 5, 6]];
    // Any two of them differ by three clients or more but for the first and the second, and 1 - 2 + 3 is client 7.
    memory.admit(sets[1], &[]).unwrap();
    memory.admit(sets[2], &[]).unwrap();
    assert!(matches!(memory.admit(sets[0], &[]), Err(Error::Set { found: 1, minimum: 3 })));
    assert!(matches!(SetMemory::new(3).unwrap().would_admit(&sets, &[]), Err(Error::Set { .. })));
    let vectors: Vec<Vec<Name>> = sets.iter().map(|set| set.to_vec()).collect();
    let apart = set_apart(&vectors, 8, 3, &[]).unwrap();
    assert!(apart.contains(&7), "the reference finds client 7 too: {apart:?}");
    assert_eq!(set_apart(&vectors[1..], 8, 3, &[]), None);
    assert_eq!(memory.groups(), [vec![1, 2, 3], vec![4, 5, 6]], "a refusal changes nothing");
}

/// A client that has `least` in a set, and fewer clients with it that some sum of multiples of `sets` speaks of alone.
fn promise_broken(sets: &[(u64, Vec<Name>)], clients: Name, exempt: &[Name]) -> Option<(Name, Vec<Name>)> {
    let vectors: Vec<Vec<Name>> = sets.iter().map(|(_, set)| set.clone()).collect();
    let honest: Vec<Name> = (0..clients).filter(|client| !exempt.contains(client)).collect();
    let mut found = honest.iter().flat_map(|client| {
        let least = sets.iter().filter(|(_, set)| set.contains(client)).map(|(k, _)| *k).max().unwrap_or(1);
        let others: Vec<Name> = honest.iter().copied().filter(|other| other != client).collect();
        let few = (least as usize).saturating_sub(2).min(others.len());
        let beside = if least < 2 { Vec::new() } else { choices(&others, few) };
        beside.into_iter().map(|beside| (*client, beside))
    });
    found.find(|(client, beside)| {
        let without = [beside.as_slice(), exempt].concat();
        rank(&vectors, clients, &[&without[..], &[*client]].concat()) < rank(&vectors, clients, &without)
    })
}

/// As over rosters, of which each may have another k: a client keeps the largest of its sums.
#[test]
fn attack_32_no_sequence_of_requests_under_many_k_breaks_what_one_has_promised() {
    let (seed, mut random) = seeded();
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..tries() {
        let clients = random.random_range(2..=10);
        let exempt: Vec<Name> = (0..clients).filter(|_| random.random_bool(0.1)).collect();
        let mut memory = SetMemory::new(1).unwrap();
        let mut sets: Vec<(u64, Vec<Name>)> = Vec::new();
        for _ in 0..random.random_range(1..10) {
            let k = random.random_range(1..=4);
            memory = memory.with_minimum(k).unwrap();
            let near = sets.last().map(|(_, set)| set).filter(|_| random.random_bool(0.6));
            let wanted = random_set(&mut random, clients, near);
            let fits = random.random_bool(0.3);
            let set = if fits { memory.largest_fitting(&wanted, &exempt) } else { wanted };
            match memory.admit(&set, &exempt) {
                Ok(()) => {
                    sets.push((k, set));
                    accepted += 1;
                }
                Err(error) => {
                    assert!(!fits || set.is_empty(), "seed {seed}: {set:?} fits {sets:?}: {error}");
                    refused += 1;
                }
            }
            memory = SetMemory::from_bytes(&memory.to_bytes()).unwrap();
        }
        assert_eq!(promise_broken(&sets, clients, &exempt), None, "seed {seed}: {sets:?}, {exempt:?} exempt");
    }
    assert!(accepted > tries() && refused > tries(), "{accepted} {refused}");
}

#[test]
fn attack_32_no_sequence_of_requests_sets_apart_fewer_than_k_clients() {
    let (seed, mut random) = seeded();
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..tries() {
        let (clients, k) = (random.random_range(2..=11), random.random_range(1..=4));
        let exempt: Vec<Name> = (0..clients).filter(|_| random.random_bool(0.1)).collect();
        let mut memory = SetMemory::new(k).unwrap();
        let mut sets = Vec::new();
        for _ in 0..random.random_range(1..12) {
            let near = sets.last().filter(|_| random.random_bool(0.6));
            let wanted = random_set(&mut random, clients, near);
            let set = if random.random_bool(0.3) { memory.largest_fitting(&wanted, &exempt) } else { wanted };
            let before = memory.clone();
            match memory.admit(&set, &exempt) {
                Ok(()) => {
                    sets.push(set);
                    accepted += 1;
                }
                Err(Error::Set { .. } | Error::EmptyCohort) => {
                    assert_eq!(memory, before);
                    refused += 1;
                }
                Err(other) => unreachable!("seed {seed}: {other}"),
            }
            // As after a restart.
            memory = SetMemory::from_bytes(&memory.to_bytes()).unwrap();
        }
        assert_eq!(set_apart(&sets, clients, k, &exempt), None, "seed {seed}: {sets:?} of {k}, {exempt:?} exempt");
    }
    assert!(accepted > tries() && refused > tries(), "{accepted} {refused}");
}

#[test]
fn what_fits_is_admitted_and_keeps_a_run_going() {
    let memory = |sets: &[&[Name]]| {
        let mut memory = SetMemory::new(3).unwrap();
        sets.iter().for_each(|set| memory.admit(set, &[]).unwrap());
        memory
    };
    let ten: Vec<Name> = (0..10).collect();
    // A run that begins again with one client away, and with one more.
    assert_eq!(memory(&[&ten]).largest_fitting(&ten[..9], &[]), (0..7).collect::<Vec<_>>());
    assert_eq!(memory(&[&ten[..9]]).largest_fitting(&ten, &[]), (0..9).collect::<Vec<_>>());
    assert_eq!(memory(&[&ten[..7]]).largest_fitting(&ten, &[]), ten);
    // A liar that is proven one: its group need not sit out.
    assert_eq!(memory(&[&ten]).largest_fitting(&ten[1..], &[0]), ten[1..]);
    assert_eq!(memory(&[&ten[..5]]).largest_fitting(&ten[..4], &[]), [] as [Name; 0]);
    assert_eq!(memory(&[]).largest_fitting(&ten[..2], &[]), [] as [Name; 0]);
    let mut random = StdRng::seed_from_u64(33);
    for _ in 0..2000 {
        let mut memory = SetMemory::new(random.random_range(1..5)).unwrap();
        for _ in 0..8 {
            let wanted = random_set(&mut random, 20, None);
            let exempt: Vec<Name> = (0..20).filter(|_| random.random_bool(0.02)).collect();
            let fitting = memory.largest_fitting(&wanted, &exempt);
            assert!(fitting.iter().all(|client| wanted.contains(client)));
            if memory.admit(&wanted, &exempt).is_ok() {
                assert_eq!(fitting, wanted, "what fits whole is left whole");
            } else if !fitting.is_empty() {
                memory.admit(&fitting, &exempt).unwrap();
            }
        }
    }
}

#[test]
fn a_proven_liar_hides_nobody_and_exposes_nobody() {
    let mut memory = SetMemory::new(3).unwrap();
    // Two clients and one whose value is known are two clients.
    assert!(matches!(memory.admit(&[1, 2, 3], &[3]), Err(Error::Set { found: 2, minimum: 3 })));
    memory.admit(&[1, 2, 3, 4], &[]).unwrap();
    memory.admit(&[1, 2, 3], &[4]).unwrap();
    assert_eq!(memory.groups(), [vec![1, 2, 3], vec![4]]);
    // A lie that is proven later: the group is what it was, and is summed as a whole.
    memory.admit(&[1, 2, 3, 5, 6, 7], &[1]).unwrap();
    assert!(memory.admit(&[2, 5, 6, 7], &[]).is_err());
    // Its exemption outlives the call.
    memory.admit(&[2, 3, 5, 6, 7], &[]).unwrap();
}

#[test]
fn a_memory_has_one_encoding() {
    let mut memory = SetMemory::new(2).unwrap();
    memory.admit(&[9, 1, 4, 3, 3], &[]).unwrap();
    memory.admit(&[1, 4, 7, 8], &[5]).unwrap();
    assert_eq!(memory.groups(), [vec![1, 4], vec![3, 9], vec![7, 8]]);
    let bytes = memory.to_bytes();
    assert_eq!(SetMemory::from_bytes(&bytes).unwrap(), memory);
    for len in 0..bytes.len() {
        assert!(SetMemory::from_bytes(&bytes[..len]).is_err());
    }
    assert!(SetMemory::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
    let listed = |clients: &[Name]| {
        let names = clients.iter().flat_map(|client| client.to_le_bytes());
        (clients.len() as u32).to_le_bytes().into_iter().chain(names).collect::<Vec<u8>>()
    };
    let of = |k: u64, groups: &[&[Name]]| {
        let group = |group: &&[Name]| [&k.to_le_bytes()[..], &listed(group)].concat();
        let head = (groups.len() as u32).to_le_bytes();
        [&k.to_le_bytes()[..], &listed(&[]), &head, &groups.iter().map(group).collect::<Vec<_>>().concat()].concat()
    };
    let four_billion = |before: &[u8]| [before, &u32::MAX.to_le_bytes()].concat();
    let none = of(2, &[]);
    SetMemory::from_bytes(&none).unwrap();
    for wrong in [
        of(2, &[&[3, 4], &[1, 2]]),
        of(2, &[&[2, 1]]),
        of(2, &[&[1, 2], &[2, 3]]),
        of(2, &[&[1, 1]]),
        of(2, &[&[]]),
        [&none[..12], &of(0, &[&[1, 2]])[12..]].concat(),
        four_billion(&of(2, &[&[]])[..24]),
        four_billion(&none[..12]),
    ] {
        assert_eq!(SetMemory::from_bytes(&wrong).unwrap_err().class(), "FrameError", "{wrong:?}");
    }
    assert!(SetMemory::from_bytes(&of(0, &[])).is_err(), "k of 0");
    assert!(matches!(SetMemory::new(0), Err(Error::Parameter { .. })));
    assert!(matches!(memory.admit(&[], &[]), Err(Error::EmptyCohort)));
}

#[test]
fn a_group_keeps_the_largest_minimum_of_its_sums() {
    let mut memory = SetMemory::new(2).unwrap();
    memory.admit(&[0, 1, 2, 3, 4, 5, 6], &[]).unwrap();
    memory.admit(&[0, 1], &[]).unwrap();
    // Under a larger minimum two of them are too few, also beside others: with all of them and all others, these two
    // would follow.
    let mut stricter = memory.with_minimum(3).unwrap();
    for few in [&[0, 1, 2, 3, 4, 5, 6][..], &[10, 11], &[2, 3]] {
        assert!(matches!(stricter.admit(few, &[]), Err(Error::Set { found: 2, minimum: 3 })), "{few:?}");
    }
    assert_eq!(stricter.largest_fitting(&[0, 1, 2, 3, 4, 5, 6], &[]), [2, 3, 4, 5, 6]);
    stricter.admit(&[2, 3, 4, 5, 6], &[]).unwrap();
    // Groups of a sum under three keep three in sums under two. Other clients need two.
    let mut lax = SetMemory::from_bytes(&stricter.to_bytes()).unwrap().with_minimum(2).unwrap();
    assert!(matches!(lax.admit(&[2, 3], &[]), Err(Error::Set { minimum: 3, .. })));
    assert_eq!(lax.largest_fitting(&[2, 3, 4, 10, 11], &[]), [10, 11]);
    assert_eq!((lax.least(&[2, 10]), lax.least(&[10])), (3, 0));
    lax.admit(&[0, 1, 10, 11], &[]).unwrap();
    assert_eq!(lax.largest_fitting(&[10, 11], &[]), [10, 11]);
    assert_eq!(lax.groups(), [vec![0, 1], vec![2, 3, 4, 5, 6], vec![10, 11]]);
}
