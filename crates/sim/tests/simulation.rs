//! The whole engine under faults. `cargo xtask sim --seed S` plays one seed again and tells its story.

use sprag_sim::simulation::{Options, run};

#[test]
fn first() {
    let seeds = std::env::var("SPRAG_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(50u64);
    let mut all = sprag_sim::simulation::Summary::default();
    for seed in 0..seeds {
        match run(seed, &Options::default()) {
            Ok(summary) => all.add(&summary),
            Err(failure) => {
                let small = sprag_sim::simulation::shrink(failure);
                panic!("{small}");
            }
        }
    }
    println!("{all}");
}
