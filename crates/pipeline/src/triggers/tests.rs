//! Ticks across the changes of clocks, as a table; diagnostics of rules.

use super::TriggerSource;

/// Returns a pipeline with one schedule.
fn file(schedule: &str) -> String {
    format!("name: p\non:\n  - id: r\n    schedule: {schedule}\nsteps: [{{id: a, run: x}}]\n")
}

/// Returns the keys and times of the next ticks after a time.
fn ticks(schedule: &str, after: &str, count: usize) -> Vec<String> {
    let loaded = crate::parse("p.yaml", &file(schedule)).unwrap_or_else(|wrong| panic!("{wrong}"));
    let TriggerSource::Schedule(schedule) = &loaded.pipeline.triggers[0].source else { panic!("a schedule") };
    let mut after_ms = crate::time_ms(after).unwrap();
    let mut found = Vec::new();
    while found.len() < count {
        let Some(tick) = schedule.next_after(after_ms) else { break };
        assert!(tick.nominal_ms > after_ms, "time goes on");
        after_ms = tick.nominal_ms;
        found.push(format!("{} at {}", tick.key, tick.time));
    }
    found
}

#[test]
fn r03_ticks_across_changes_of_clocks() {
    let cases: &[(&str, &str, &[&str])] = &[
        // A gap: a fixed time fires once, when the gap ends.
        (
            "{ cron: '30 2 * * *', zone: Europe/Berlin }",
            "2026-03-28T00:00:00Z",
            &[
                "2026-03-28T02:30 Europe/Berlin at 2026-03-28T02:30:00+01:00",
                "2026-03-29T02:30 Europe/Berlin at 2026-03-29T03:00:00+02:00",
                "2026-03-30T02:30 Europe/Berlin at 2026-03-30T02:30:00+02:00",
            ],
        ),
        // Several fixed times of one gap fire once.
        (
            "{ cron: '0,30 2,3 * * *', zone: Europe/Berlin }",
            "2026-03-29T00:00:00Z",
            &[
                "2026-03-29T02:00 Europe/Berlin at 2026-03-29T03:00:00+02:00",
                "2026-03-29T03:30 Europe/Berlin at 2026-03-29T03:30:00+02:00",
            ],
        ),
        // A repeat: a fixed time fires the first time only.
        (
            "{ cron: '30 2 * * *', zone: Europe/Berlin }",
            "2026-10-24T12:00:00Z",
            &[
                "2026-10-25T02:30 Europe/Berlin at 2026-10-25T02:30:00+02:00",
                "2026-10-26T02:30 Europe/Berlin at 2026-10-26T02:30:00+01:00",
            ],
        ),
        // Searched from within the second turn.
        (
            "{ cron: '30 2 * * *', zone: Europe/Berlin }",
            "2026-10-25T01:10:00Z",
            &["2026-10-26T02:30 Europe/Berlin at 2026-10-26T02:30:00+01:00"],
        ),
        // Steps fire in real time: not in the gap, and in both turns of the repeat.
        (
            "{ cron: '*/30 * * * *', zone: Europe/Berlin }",
            "2026-03-29T00:29:00Z",
            &[
                "2026-03-29T01:30 Europe/Berlin at 2026-03-29T01:30:00+01:00",
                "2026-03-29T03:00 Europe/Berlin at 2026-03-29T03:00:00+02:00",
            ],
        ),
        (
            "{ cron: '*/30 * * * *', zone: Europe/Berlin }",
            "2026-10-25T00:00:00Z",
            &[
                "2026-10-25T02:30 Europe/Berlin at 2026-10-25T02:30:00+02:00",
                "2026-10-25T02:00 Europe/Berlin again at 2026-10-25T02:00:00+01:00",
                "2026-10-25T02:30 Europe/Berlin again at 2026-10-25T02:30:00+01:00",
                "2026-10-25T03:00 Europe/Berlin at 2026-10-25T03:00:00+01:00",
            ],
        ),
        // A gap at midnight.
        (
            "{ cron: '0 0 * * *', zone: America/Santiago }",
            "2026-09-05T12:00:00Z",
            &[
                "2026-09-06T00:00 America/Santiago at 2026-09-06T01:00:00-03:00",
                "2026-09-07T00:00 America/Santiago at 2026-09-07T00:00:00-03:00",
            ],
        ),
        // Half an hour.
        (
            "{ cron: '15 2 * * *', zone: Australia/Lord_Howe }",
            "2026-10-03T12:00:00Z",
            &[
                "2026-10-04T02:15 Australia/Lord_Howe at 2026-10-04T02:30:00+11:00",
                "2026-10-05T02:15 Australia/Lord_Howe at 2026-10-05T02:15:00+11:00",
            ],
        ),
        // Two hours.
        (
            "{ cron: '30 1 * * *', zone: Antarctica/Troll }",
            "2026-03-28T12:00:00Z",
            &[
                "2026-03-29T01:30 Antarctica/Troll at 2026-03-29T03:00:00+02:00",
                "2026-03-30T01:30 Antarctica/Troll at 2026-03-30T01:30:00+02:00",
            ],
        ),
        // A whole day that does not exist.
        (
            "{ cron: '30 2 * * *', zone: Pacific/Apia }",
            "2011-12-29T00:00:00Z",
            &[
                "2011-12-29T02:30 Pacific/Apia at 2011-12-29T02:30:00-10:00",
                "2011-12-30T02:30 Pacific/Apia at 2011-12-31T00:00:00+14:00",
                "2011-12-31T02:30 Pacific/Apia at 2011-12-31T02:30:00+14:00",
            ],
        ),
        // Other forms.
        (
            "{ every: 15m }",
            "2026-03-01T00:07:00Z",
            &[
                "2026-03-01T00:15:00Z at 2026-03-01T00:15:00+00:00",
                "2026-03-01T00:30:00Z at 2026-03-01T00:30:00+00:00",
            ],
        ),
        (
            "{ at: ['2030-01-31T08:00:00Z', '2030-01-30T08:00:00+01:00'] }",
            "2026-03-01T00:00:00Z",
            &[
                "2030-01-30T07:00:00Z at 2030-01-30T07:00:00+00:00",
                "2030-01-31T08:00:00Z at 2030-01-31T08:00:00+00:00",
            ],
        ),
        (
            "[{ cron: '0 9 * * *' }, { cron: '0 17 * * *' }]",
            "2026-03-01T10:00:00Z",
            &[
                "2026-03-01T17:00 UTC at 2026-03-01T17:00:00+00:00",
                "2026-03-02T09:00 UTC at 2026-03-02T09:00:00+00:00",
            ],
        ),
        (
            "{ cron: '0 9 * * *', except: ['2026-03-02', '2026-03-03'] }",
            "2026-03-01T10:00:00Z",
            &["2026-03-04T09:00 UTC at 2026-03-04T09:00:00+00:00"],
        ),
    ];
    for (schedule, after, expected) in cases {
        assert_eq!(ticks(schedule, after, expected.len()), *expected, "{schedule} after {after}");
    }
}

#[test]
fn r08_jitter_is_the_same_everywhere_and_stays_before_the_next_tick() {
    let loaded = crate::parse("p.yaml", &file("{ every: 1m, jitter: 10m }")).unwrap();
    let TriggerSource::Schedule(schedule) = &loaded.pipeline.triggers[0].source else { panic!("a schedule") };
    let mut after_ms = crate::time_ms("2026-03-01T00:00:00Z").unwrap();
    let mut delays = std::collections::BTreeSet::new();
    for _ in 0..50 {
        let tick = schedule.next_after(after_ms).unwrap();
        let fires_ms = schedule.fires_ms("p/r", &tick);
        assert!((tick.nominal_ms..tick.nominal_ms + 60_000).contains(&fires_ms), "{fires_ms}");
        assert_eq!(fires_ms, schedule.fires_ms("p/r", &tick));
        delays.insert(fires_ms - tick.nominal_ms);
        after_ms = tick.nominal_ms;
    }
    assert!(delays.len() > 20, "{delays:?}");
}

#[test]
fn mistakes_in_a_rule_have_a_place_and_a_help() {
    for (schedule, message) in [
        ("{ cron: '0 0 30 2 *' }", "the schedule never fires"),
        ("{ cron: '0 0 * *' }", "`0 0 * *` is not a cron expression: it has 4 fields instead of five"),
        ("{ cron: '0 0 * * *', zone: Europe/Berln }", "there is no time zone `Europe/Berln`"),
        ("{ every: 500ms }", "`every` is shorter than a second"),
        ("{ at: tomorrow }", "`tomorrow` is not a time"),
        ("{ cron: '0 0 * * *', except: [Sunday] }", "`Sunday` is not a day"),
    ] {
        let wrong = crate::parse("p.yaml", &file(schedule)).map(|_| ()).unwrap_err();
        let found = wrong.iter().find(|one| one.message == message);
        assert!(found.is_some_and(|one| one.line == Some(4)), "{schedule}: {wrong}");
    }
    let with = |rule: &str| {
        let file = format!(
            "inputs: {{ day: {{ required: true }} }}\non:\n  - {rule}\nsteps: [{{id: a, run: 'echo {{{{ inputs.day }}}}'}}]\n"
        );
        crate::parse("p.yaml", &file).map(|_| ()).unwrap_err().to_string()
    };
    let every = "schedule: { every: 1h }";
    for (rule, message) in [
        (format!("{{ id: r, {every} }}"), "rule `r` does not give the input `day`"),
        (
            format!("{{ id: r, {every}, inputs: {{ day: '{{{{ tick.dat }}}}' }} }}"),
            "an event of this rule has no `tick.dat`",
        ),
        (format!("{{ id: r, {every}, inputs: {{ dya: x, day: y }} }}"), "the pipeline has no input `dya`"),
        (
            format!("{{ id: r, {every}, when: event.x, inputs: {{ day: y }} }}"),
            "an event of this rule has no `event.x`",
        ),
        ("{ id: r, inputs: { day: y } }".to_owned(), "schedule"),
    ] {
        assert!(with(&rule).contains(message), "{rule}: {}", with(&rule));
    }
}

#[test]
fn a_fixed_time_that_clocks_skip_is_a_warning() {
    let loaded = crate::parse("p.yaml", &file("{ cron: '30 2 * * *', zone: Europe/Berlin }")).unwrap();
    assert!(loaded.warnings.to_string().contains("the clocks of Europe/Berlin skip or repeat this time"));
    let loaded = crate::parse("p.yaml", &file("{ cron: '0 9 1 * mon' }")).unwrap();
    assert!(loaded.warnings.to_string().contains("both day fields are given"));
}
