//! How many connections a service holds. In a process of its own: the limit of descriptors is the process's.
#![cfg(feature = "server")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap is a failed test")]

use fedcipher_engine::connection_limiter::{ConnectionLimiter, Origin, Pass, Work};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::ErrorKind;
use std::sync::{Arc, Mutex};

const MAX_CONNECTIONS: usize = 10;
const ONE: Origin = Origin::User(1);
const OTHER: Origin = Origin::User(2);

/// The connections that a limiter has rejected.
type OnRejected = Arc<Mutex<Vec<(Origin, &'static str)>>>;

/// A limiter with room for [`MAX_CONNECTIONS`] connections, and its memory.
fn limiter() -> (Arc<ConnectionLimiter>, OnRejected) {
    let on_rejected = OnRejected::default();
    let told = Arc::clone(&on_rejected);
    let limiter = ConnectionLimiter::new(Box::new(move |origin, what| told.lock().unwrap().push((origin, what))));
    // Half of the descriptors are kept for other uses, and a connection may take two.
    let limit = Rlimit { current: Some(4 * MAX_CONNECTIONS as u64), maximum: getrlimit(Resource::Nofile).maximum };
    setrlimit(Resource::Nofile, limit).unwrap();
    (limiter, on_rejected)
}

/// Connections, each with an active call if `at_work`.
fn admitted(
    limiter: &Arc<ConnectionLimiter>,
    origin: Origin,
    count: usize,
    at_work: bool,
) -> Vec<(Pass, Option<Work>)> {
    let passes = (0..count).map(|_| limiter.admit(origin).unwrap());
    passes.map(|pass| (at_work.then(|| pass.call_tracker().call()), pass)).map(|(work, pass)| (pass, work)).collect()
}

/// One after the other: the limit is of both.
#[tokio::test]
async fn places_are_shared() {
    one_peer_has_half_of_the_places().await;
    who_has_said_nothing_makes_room_the_oldest_first().await;
    whose_calls_are_over_makes_room_after_those_who_have_said_nothing().await;
}

async fn one_peer_has_half_of_the_places() {
    let (limiter, on_rejected) = limiter();
    let held = admitted(&limiter, ONE, MAX_CONNECTIONS / 2, true);
    assert!(limiter.admit(ONE).is_none());
    assert_eq!(*on_rejected.lock().unwrap(), [(ONE, "connection, too many are open")]);
    let others = admitted(&limiter, OTHER, MAX_CONNECTIONS / 2, true);
    assert!(limiter.admit(Origin::User(3)).is_none(), "full of those who are at work");
    drop((held, others));
    admitted(&limiter, ONE, MAX_CONNECTIONS / 2, true);
}

async fn who_has_said_nothing_makes_room_the_oldest_first() {
    let (limiter, on_rejected) = limiter();
    let mut silent = admitted(&limiter, ONE, MAX_CONNECTIONS / 2, false);
    // For its own peer, whose places are taken.
    let own = admitted(&limiter, ONE, 1, true);
    let (mut oldest, _) = silent.remove(0);
    assert_eq!(oldest.ended().await.kind(), ErrorKind::ConnectionAborted);
    drop(oldest);
    // For any origin, once all are in use.
    let others = admitted(&limiter, OTHER, MAX_CONNECTIONS / 2, true);
    let third = admitted(&limiter, Origin::User(3), 1, true);
    let (mut oldest, _) = silent.remove(0);
    assert_eq!(oldest.ended().await.kind(), ErrorKind::ConnectionAborted);
    drop(oldest);
    assert_eq!(*on_rejected.lock().unwrap(), [(ONE, "silent connection, for a newer one"); 2]);
    drop((silent, own, others, third));
}

/// A peer that was rejected once, or called long ago, could answer pings for any length of time.
async fn whose_calls_are_over_makes_room_after_those_who_have_said_nothing() {
    let (limiter, on_rejected) = limiter();
    let mut held = admitted(&limiter, ONE, MAX_CONNECTIONS / 2, true);
    for (_, work) in held.iter_mut().take(2) {
        *work = None;
    }
    // Two calls of one connection, of which one is over.
    drop(held[2].0.call_tracker().call());
    let silent = admitted(&limiter, OTHER, 1, false);
    for _ in 0..2 {
        let new = admitted(&limiter, ONE, 1, true);
        let (mut oldest, _) = held.remove(0);
        assert_eq!(oldest.ended().await.kind(), ErrorKind::ConnectionAborted);
        held.extend(new);
    }
    assert!(limiter.admit(ONE).is_none(), "the others are at work");
    let others = admitted(&limiter, OTHER, MAX_CONNECTIONS / 2 - 1, true);
    let third = admitted(&limiter, Origin::User(3), 1, true);
    let (mut last, _) = silent.into_iter().next().unwrap();
    assert_eq!(last.ended().await.kind(), ErrorKind::ConnectionAborted);
    drop(last);
    let told = [(ONE, "connection, too many are open"), (OTHER, "silent connection, for a newer one")];
    assert_eq!(*on_rejected.lock().unwrap(), told);
    drop((held, others, third));
}
