//! A thin PyO3 layer without logic: numpy in, bytes and numpy out, with the GIL released.

mod aggregator;
mod arrays;
mod bench;
mod committee;
mod decryptor;
mod encryptor;
#[cfg(feature = "engine-client")]
mod engine;
mod errors;
mod forked;
mod frames;
#[cfg(all(feature = "guard", target_os = "linux"))]
mod jail;
mod key_files;
mod keys;
mod layout;
mod library;
mod log_tree;
mod numbers;
mod scheme;
mod sets;

use fedcipher_core::RoundId;
use pyo3::prelude::*;

/// The features of this build beyond the core, by the names of `cargo build --features`.
const FEATURES: &[&str] = &[
    #[cfg(feature = "engine-client")]
    "engine-client",
    #[cfg(all(feature = "guard", target_os = "linux"))]
    "guard",
    #[cfg(feature = "hhe")]
    "hhe",
];

#[pymodule]
fn _native(m: &Bound<'_, PyModule>) -> PyResult<()> {
    forked::remember_this_process();
    m.add_class::<layout::Layout>()?;
    m.add_class::<layout::Levels>()?;
    m.add_class::<keys::ClientKey>()?;
    m.add_class::<keys::ServerKey>()?;
    m.add_class::<scheme::Scheme>()?;
    m.add_class::<encryptor::Encryptor>()?;
    m.add_class::<aggregator::Aggregator>()?;
    m.add_class::<decryptor::Decryptor>()?;
    m.add_class::<committee::Identity>()?;
    m.add_class::<committee::Roster>()?;
    m.add_class::<committee::Member>()?;
    #[cfg(feature = "engine-client")]
    m.add_class::<engine::EngineClient>()?;
    #[cfg(feature = "engine-client")]
    m.add_class::<engine::AuthorityClient>()?;
    m.add_class::<sets::SetMemory>()?;
    m.add_class::<log_tree::LogTree>()?;
    m.add_class::<library::Library>()?;
    m.add_class::<library::Admission>()?;
    m.add_class::<library::Sender>()?;
    m.add_class::<library::Receiver>()?;
    m.add_class::<library::Opened>()?;
    #[cfg(all(feature = "guard", target_os = "linux"))]
    m.add_function(wrap_pyfunction!(jail::run_in_jail, m)?)?;
    m.add_function(wrap_pyfunction!(frames::inspect, m)?)?;
    m.add_function(wrap_pyfunction!(frames::layout_of, m)?)?;
    m.add_function(wrap_pyfunction!(committee::charter_signature_holds, m)?)?;
    m.add_function(wrap_pyfunction!(committee::roster_signature_holds, m)?)?;
    m.add_function(wrap_pyfunction!(log_tree::log_includes, m)?)?;
    m.add_function(wrap_pyfunction!(log_tree::log_continues, m)?)?;
    m.add_function(wrap_pyfunction!(log_tree::log_signature_holds, m)?)?;
    m.add_function(wrap_pyfunction!(scheme::min_contributions, m)?)?;
    m.add_function(wrap_pyfunction!(scheme::every_scheme, m)?)?;
    m.add_function(wrap_pyfunction!(key_files::read_key_file, m)?)?;
    m.add_function(wrap_pyfunction!(key_files::replaceable, m)?)?;
    m.add_function(wrap_pyfunction!(key_files::changeable, m)?)?;
    m.add_function(wrap_pyfunction!(key_files::hold_key_file, m)?)?;
    m.add_function(wrap_pyfunction!(scheme::common_set, m)?)?;
    m.add_function(wrap_pyfunction!(arrays::add_noise, m)?)?;
    m.add_function(wrap_pyfunction!(arrays::key_stream, m)?)?;
    m.add_function(wrap_pyfunction!(arrays::rotate, m)?)?;
    m.add_function(wrap_pyfunction!(arrays::divided, m)?)?;
    m.add_function(wrap_pyfunction!(arrays::cut, m)?)?;
    m.add_function(wrap_pyfunction!(arrays::multiply, m)?)?;
    m.add_function(wrap_pyfunction!(arrays::dot, m)?)?;
    m.add_function(wrap_pyfunction!(arrays::scale, m)?)?;
    m.add_function(wrap_pyfunction!(arrays::whole_steps, m)?)?;
    m.add_function(wrap_pyfunction!(arrays::mean_square, m)?)?;
    m.add_function(wrap_pyfunction!(arrays::nearest_squares, m)?)?;
    m.add_function(wrap_pyfunction!(bench::bench_flashe, m)?)?;
    m.add_function(wrap_pyfunction!(bench::bench_aes, m)?)?;
    m.add_function(wrap_pyfunction!(bench::bench_ntt, m)?)?;
    m.add_function(wrap_pyfunction!(numbers::first_round, m)?)?;
    m.add_function(wrap_pyfunction!(numbers::round_date, m)?)?;
    m.add("ROUND_INDEX_BITS", RoundId::INDEX_BITS)?;
    m.add("features", FEATURES)?;
    m.add("version", env!("CARGO_PKG_VERSION"))
}
