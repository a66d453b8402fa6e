//! The pipelines that chaos runs. Their steps append marks to files outside of Sprag's data, so that the checks need not
//! trust Sprag's own records.

use crate::Random;

/// The functions that every step uses. `work N` writes a mark every 50 ms, which shows that the attempt is alive.
pub(super) const MARKS: &str = r#"mark() {
  printf '%s %s %s %s %s %s\n' "$1" "$P" "$SPRAG_STEP_ID" "$SPRAG_ATTEMPT" "$SPRAG_FENCE" "$$" >> "$OUT/marks/$SPRAG_RUN_ID"
  [ -z "$GROUP" ] || printf '%s %s %s\n' "$1" "$SPRAG_RUN_ID" "$SPRAG_STEP_ID" >> "$OUT/groups/$GROUP"
}
begin() { mark begin; }
end() { mark end; }
work() { n=$1; while [ "$n" -gt 0 ]; do sleep 0.05; mark tick; n=$((n-1)); done; }
"#;

/// One pipeline: its name, its YAML, and for each step that writes marks the steps that must have ended before it.
pub(super) struct Pipeline {
    pub(super) name: &'static str,
    yaml: &'static str,
    /// The steps that write marks, with those of them that each one needs.
    pub(super) steps: &'static [(&'static str, &'static [&'static str])],
    /// The relative frequency of its starts.
    weight: u64,
    /// Whether a person may resume, rewind or fork its runs.
    pub(super) may_run_again: bool,
}

const PIPELINES: &[Pipeline] = &[
    Pipeline {
        name: "chain",
        yaml: "steps:
  - id: a
    run: |
      P=chain; . $OUT/marks.sh; begin; work 3
      setsid sleep 300 > /dev/null 2>&1 &
      end
  - id: b
    retry: { attempts: 3, delay: 100ms }
    run: |
      P=chain; . $OUT/marks.sh; trap '' TERM; begin; work 4
      if [ $((SPRAG_ATTEMPT % 3)) = 1 ]; then mark fail; exit 1; fi
      end
  - { id: c, run: 'P=chain; . $OUT/marks.sh; begin; work 2; end' }
  - { id: clean, always: true, run: 'P=chain; . $OUT/marks.sh; begin; end' }
",
        steps: &[("a", &[]), ("b", &["a"]), ("c", &["b"]), ("clean", &[])],
        weight: 3,
        may_run_again: true,
    },
    Pipeline {
        name: "fans",
        yaml: "steps:
  - { id: a, run: 'P=fans; . $OUT/marks.sh; begin; work 1; end' }
  - id: fan
    foreach: [1, 2, 3, 4]
    queue: other
    run: 'P=fans; . $OUT/marks.sh; begin; work {{ item }}; end'
  - { id: join, run: 'P=fans; . $OUT/marks.sh; begin; work 1; end' }
",
        steps: &[("a", &[]), ("fan", &["a"]), ("join", &["fan"])],
        weight: 2,
        may_run_again: true,
    },
    Pipeline {
        name: "asks",
        yaml: "steps:
  - { id: a, run: 'P=asks; . $OUT/marks.sh; begin; work 1; end' }
  - { id: ask, gate: { ask: 'Go on?', timeout: 1h } }
  - { id: after, run: 'P=asks; . $OUT/marks.sh; begin; work 1; end' }
",
        steps: &[("a", &[]), ("after", &["a"])],
        weight: 2,
        may_run_again: true,
    },
    Pipeline {
        name: "waits-its-turn",
        yaml: "concurrency: { group: turn, on_conflict: queue }
steps:
  - { id: one, run: 'P=waits-its-turn; GROUP=turn; . $OUT/marks.sh; begin; work 4; end' }
  - { id: two, run: 'P=waits-its-turn; GROUP=turn; . $OUT/marks.sh; begin; work 2; end' }
",
        steps: &[("one", &[]), ("two", &["one"])],
        weight: 2,
        may_run_again: true,
    },
    Pipeline {
        name: "cancels-older",
        yaml: "concurrency: { group: newest, on_conflict: cancel_older }
steps:
  - { id: one, run: 'P=cancels-older; GROUP=newest; . $OUT/marks.sh; begin; work 8; end' }
  - { id: two, run: 'P=cancels-older; GROUP=newest; . $OUT/marks.sh; begin; work 2; end' }
",
        steps: &[("one", &[]), ("two", &["one"])],
        weight: 1,
        may_run_again: true,
    },
    Pipeline {
        name: "once",
        yaml: "steps:
  - { id: one, at_most_once: true, run: 'P=once; . $OUT/marks.sh; begin; work 6; end' }
  - { id: two, run: 'P=once; . $OUT/marks.sh; begin; work 1; end' }
",
        steps: &[("one", &[]), ("two", &["one"])],
        weight: 1,
        may_run_again: false,
    },
    Pipeline {
        name: "calls",
        yaml: "steps:
  - { id: before, run: 'P=calls; . $OUT/marks.sh; begin; work 1; end' }
  - { id: call, pipeline: { file: chain.yaml } }
  - { id: after, run: 'P=calls; . $OUT/marks.sh; begin; work 1; end' }
",
        steps: &[("before", &[]), ("after", &["before"])],
        weight: 1,
        may_run_again: true,
    },
    Pipeline {
        name: "lands",
        yaml: "environment: { worktree: { base: main } }
steps:
  - id: work
    run: |
      P=lands; . $OUT/marks.sh; begin
      if [ -n \"$SPRAG_FEEDBACK\" ]; then git reset --quiet --hard main; fi
      mkdir -p lines
      echo \"$SPRAG_RUN_ID-$SPRAG_ATTEMPT\" >> lines/$SPRAG_RUN_ID
      work 2
      git add lines && git commit --quiet --message \"work of $SPRAG_RUN_ID\" || exit 1
      end
  - id: land
    land: { into: main, push: { remote: origin, required: true } }
    on_fail: { rework: work, max: 10 }
  - { id: after, run: 'P=lands; . $OUT/marks.sh; begin; end' }
",
        steps: &[("work", &[]), ("after", &["work"])],
        weight: 4,
        may_run_again: true,
    },
    // Every run changes the same file: what landed meanwhile conflicts, and the work is done again.
    Pipeline {
        name: "lands-words",
        yaml: "environment: { worktree: { base: main } }
steps:
  - id: work
    run: |
      P=lands-words; . $OUT/marks.sh; begin
      if [ -n \"$SPRAG_FEEDBACK\" ]; then git reset --quiet --hard main; fi
      echo \"$SPRAG_RUN_ID-$SPRAG_ATTEMPT\" >> words.txt
      sort -o words.txt words.txt
      work 1
      git commit --quiet --all --message \"words of $SPRAG_RUN_ID\" || exit 1
      end
  - id: land
    land: { into: main, verify: sort -c words.txt, push: { remote: origin, required: true } }
    on_fail: { rework: work, max: 10 }
  - { id: after, run: 'P=lands-words; . $OUT/marks.sh; begin; end' }
",
        steps: &[("work", &[]), ("after", &["work"])],
        weight: 2,
        may_run_again: true,
    },
];

impl Pipeline {
    /// Returns all pipelines.
    pub(super) fn all() -> impl Iterator<Item = &'static Pipeline> {
        PIPELINES.iter()
    }

    /// Returns the pipeline with this name.
    pub(super) fn named(name: &str) -> Option<&'static Pipeline> {
        PIPELINES.iter().find(|pipeline| pipeline.name == name)
    }

    /// Returns a random pipeline, by weight.
    pub(super) fn draw(random: &mut Random) -> &'static Pipeline {
        let mut at = random.below(PIPELINES.iter().map(|pipeline| pipeline.weight).sum());
        let chosen = PIPELINES.iter().find(|pipeline| {
            let found = at < pipeline.weight;
            at = at.saturating_sub(pipeline.weight);
            found
        });
        chosen.unwrap_or(&PIPELINES[0])
    }

    /// Returns the text of its file.
    pub(super) fn text(&self) -> String {
        format!("name: {}\n{}", self.name, self.yaml)
    }

    /// Returns the steps that must have ended before this one; an item of a fan-out needs what the fan-out needs.
    pub(super) fn needs(&self, step: &str) -> &'static [&'static str] {
        let name = step.split('[').next().unwrap_or(step);
        self.steps.iter().find(|(id, _)| *id == name).map_or(&[], |(_, needs)| needs)
    }

    /// Returns whether its runs land on `main` and push.
    pub(super) fn lands(&self) -> bool {
        self.name.starts_with("lands")
    }
}
