//! Orders that would break the protocol do not compile.

#[test]
fn no_other_order_of_claim_check_and_value_compiles() {
    trybuild::TestCases::new().compile_fail("tests/misuse/*.rs");
}
