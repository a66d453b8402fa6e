//! Parts that the shipped program must not contain.

use sprag_lifecycle::mutants;
use sprag_tests::program;

/// The faults of the proof are switches of test builds alone.
#[test]
fn no_fault_can_be_switched_on_in_the_program() {
    let program = std::fs::read(program()).unwrap();
    let has = |text: &str| program.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has("pipeline"), "it is read as it should be");
    assert!(!has("SPRAG_MUTANT"));
    assert!(mutants::LIST.len() >= 25);
    // Looking for all of them takes a while in a file of this size, and tells no more.
    for (number, _, fault) in mutants::LIST.iter().step_by(10) {
        assert!(!has(fault), "{number}: {fault}");
    }
}
