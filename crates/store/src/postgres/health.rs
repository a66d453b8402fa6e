//! The facts about a server that `sprag doctor` reports.

use super::fault::Fault;
use super::open::SCHEMA_VERSION;
use super::wire::{Ask, Wire};
use crate::clock::{Clock, System};
use crate::columns::Source;

const ABOUT: &str = "SELECT current_setting('server_version'), current_setting('fsync'), \
     current_setting('synchronous_commit'), current_setting('full_page_writes'), \
     current_setting('max_connections'), (SELECT count(*)::text FROM pg_stat_activity), \
     current_database() || '.' || current_schema(), \
     (SELECT count(*)::text FROM pg_stat_replication), \
     has_schema_privilege(current_schema(), 'CREATE')::text, \
     pg_size_pretty(pg_database_size(current_database())), \
     (extract(epoch FROM clock_timestamp()) * 1000)::bigint::text";

/// Returns a description of the server in one line. Settings that endanger the guarantees come first.
pub(super) fn health(wire: &Wire) -> Result<String, Fault> {
    let before_ms = System.wall_ms();
    let answers = wire.ask(&[Ask::plain(ABOUT)])?;
    let after_ms = System.wall_ms();
    let mut words = Vec::new();
    if let Some(row) = answers[0].first() {
        let texts = (0..row.len()).map_while(|at| row.text(at).ok().flatten());
        words.extend(texts.map(str::to_owned));
    }
    let [version, fsync, commit, pages, most, used, schema, replicas, create, size, clock] = &words[..]
    else {
        return Ok("PostgreSQL (it says nothing of itself)".into());
    };
    let mut warnings = Vec::new();
    if fsync != "on" {
        warnings.push(format!("fsync is {fsync}: a crash of its machine loses what was acknowledged"));
    }
    if !["on", "remote_write", "remote_apply", "local"].contains(&commit.as_str()) {
        warnings.push(format!("synchronous_commit is {commit}: a crash loses the last moments"));
    }
    if pages != "on" {
        warnings.push(format!("full_page_writes is {pages}: a crash may damage it"));
    }
    if create != "true" {
        warnings.push("its user cannot make tables: a newer sprag could not upgrade it".to_owned());
    }
    let skew_ms = clock.parse::<i64>().map_or(0, |clock| clock - (before_ms + after_ms) / 2);
    if skew_ms.abs() > 1_000 {
        warnings.push(format!("its clock is {skew_ms} ms off this machine's (leases use its clock alone)"));
    }
    let warnings =
        if warnings.is_empty() { String::new() } else { format!("; LOOK: {}", warnings.join("; ")) };
    Ok(format!(
        "PostgreSQL {version}, schema {SCHEMA_VERSION} in {schema}, fsync {fsync}, synchronous_commit {commit}, \
         {used} of {most} connections, {replicas} replicas, {size}, clock {skew_ms:+} ms{warnings}"
    ))
}
