//! Every example in docs/pipelines.md loads without an error or a warning.

use sprag_pipeline::parse;

#[test]
fn examples_in_the_docs_load() {
    let text = include_str!("../../../docs/pipelines.md");
    let blocks: Vec<&str> =
        text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect();
    assert!(blocks.len() >= 6, "the examples are found");
    for block in blocks {
        match parse("pipelines.md", block) {
            Ok(loaded) => assert!(loaded.warnings.is_empty(), "{block}\n{}", loaded.warnings),
            Err(wrong) => panic!("{block}\n{wrong}"),
        }
    }
}
