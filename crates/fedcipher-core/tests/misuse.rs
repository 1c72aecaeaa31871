//! Orders that would break the protocol do not compile, and neither do numbers in another's place.

#[test]
fn no_misuse_compiles() {
    trybuild::TestCases::new().compile_fail("tests/misuse/*.rs");
}
