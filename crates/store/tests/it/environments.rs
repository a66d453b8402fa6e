//! Environments through the store's operations: creation, removal, and late reports.

use crate::common::*;
use sprag_lifecycle::{EnvironmentEvent as E, RunId};
use sprag_store::{
    Created, EnvironmentReport, EnvironmentRequest, EnvironmentRow, Id, Lost, NewWorker, Provide, Row,
    Sighting, Store,
};

const MAKER: Id = 7;
const REMOVER: Id = 8;

fn wanted(run: RunId, worker: Id) -> EnvironmentRequest {
    let (host, path, details) = ("here".into(), "/w".into(), "{}".into());
    EnvironmentRequest { id: 1, run, scope: None, host, worker, managed: true, path, details }
}

async fn provide(store: &Store, run: RunId, worker: Id, there: bool) -> Provide {
    let rows = look(store, |db| db.environments_of(run));
    let seen = rows.first().map(|row| Sighting { version: row.version(), is_present: there });
    store.claims().provide_environment(wanted(run, worker), seen).await.unwrap()
}

/// Reports an event of an attempt. Returns whether it was applied.
async fn report(store: &Store, event: E, attempt: u32) -> bool {
    let given = EnvironmentReport { attempt, ..EnvironmentReport::default() };
    store.claims().environment(1, event, given, None).await.unwrap().is_applied()
}

fn row(store: &Store, run: RunId) -> EnvironmentRow {
    look(store, |db| db.environments_of(run)).pop().expect("it is there")
}

fn word(store: &Store, run: RunId) -> String {
    row(store, run).status().to_string()
}

/// Creates a run with a ready environment, made by `MAKER`.
async fn ready(store: &Store) -> RunId {
    let run = create(store, &sequence(1)).await;
    assert!(
        matches!(provide(store, run, MAKER, false).await, Provide::Make(row) if row.provision_attempt == 1)
    );
    assert!(report(store, E::ProvisionSucceeded, 1).await);
    run
}

async fn end(store: &Store) {
    let only = claim(store, MAKER).await;
    let _ = finish(store, &only, well()).await;
}

/// Two workers start steps of one run at once: the second looks before the first has made the worktree, and asks after.
#[test]
fn w10_an_outdated_look_does_not_create_a_ready_environment_again() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(1)).await;
        assert!(matches!(provide(&store, run, MAKER, false).await, Provide::Make(_)));
        let stale = Sighting { version: row(&store, run).version(), is_present: false };
        assert!(report(&store, E::ProvisionSucceeded, 1).await);
        let asked = store.claims().provide_environment(wanted(run, REMOVER), Some(stale)).await.unwrap();
        assert!(matches!(asked, Provide::Busy(_)), "{asked:?}");
        // No row was there to look at.
        let asked = store.claims().provide_environment(wanted(run, REMOVER), None).await.unwrap();
        assert!(matches!(asked, Provide::Busy(_)), "{asked:?}");
        assert_eq!((word(&store, run).as_str(), row(&store, run).provision_attempt), ("ready", 1));
        assert!(matches!(provide(&store, run, REMOVER, true).await, Provide::Ready(_)));
        // One that is really gone is made again.
        assert!(matches!(provide(&store, run, REMOVER, false).await, Provide::Make(_)));
    });
}

#[test]
fn an_environment_of_a_lost_host_is_rebuilt_elsewhere_and_late_reports_change_nothing() {
    on_every_store(|store, _| async move {
        let worker = NewWorker {
            id: MAKER,
            name: "maker".into(),
            process: "here/1".into(),
            queues: "default".into(),
            labels: "".into(),
            slots: 1,
            lease_ms: 60_000,
        };
        store.claims().register(worker).await.unwrap();
        let run = ready(&store).await;
        let lost = async |since_ms: i64| store.reaper().host_lost(1, since_ms).await.unwrap();
        assert!(!lost(i64::MAX).await, "somebody works there");
        let _ = store.reaper().worker_lost(MAKER, Lost::ProcessGone).await.unwrap();
        assert!(!lost(0).await, "somebody worked there since");
        assert!(lost(i64::MAX).await);
        assert_eq!((word(&store, run).as_str(), &*row(&store, run).host), ("error", ""));
        assert!(!lost(i64::MAX).await, "once");
        let elsewhere = EnvironmentRequest { host: "there".into(), ..wanted(run, REMOVER) };
        let made = store
            .claims()
            .provide_environment(
                elsewhere,
                Some(Sighting { version: row(&store, run).version(), is_present: false }),
            )
            .await
            .unwrap();
        assert!(matches!(&made, Provide::Make(row) if row.provision_attempt == 2 && &*row.host == "there"));
        assert!(!report(&store, E::ProvisionFailed, 1).await, "the first attempt is over");
        assert!(report(&store, E::ProvisionSucceeded, 2).await);
        assert_eq!(told(&store, "host.lost", run, None), 1);
    });
}

#[test]
fn l10_a_provision_that_succeeds_too_late_revives_nothing() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(1)).await;
        assert!(matches!(provide(&store, run, MAKER, false).await, Provide::Make(_)));
        end(&store).await;
        // Its maker was given up, and what there was is cleaned up.
        let given = EnvironmentReport { attempt: 1, ..EnvironmentReport::default() };
        assert!(store.reaper().environment(1, E::ProvisionFailed, given).await.unwrap().is_applied());
        assert_eq!(store.claims().dispatch_destroy(1, REMOVER, false).await.unwrap(), None);
        assert_eq!(word(&store, run), "destroyed");
        let before = story(&store);
        assert!(!report(&store, E::ProvisionSucceeded, 1).await);
        assert_eq!((word(&store, run), story(&store)), ("destroyed".into(), before));
    });
}

#[test]
fn i10_an_environment_whose_creator_lost_the_answer_is_recovered() {
    on_every_store(|store, _| async move {
        register(&store, MAKER).await;
        let run = create(&store, &sequence(1)).await;
        assert!(matches!(provide(&store, run, MAKER, false).await, Provide::Make(_)));
        end(&store).await;
        // Its maker is live but can no longer report the result: others leave the environment alone, the maker does not.
        assert_eq!(store.claims().dispatch_destroy(1, REMOVER, true).await.unwrap(), None);
        assert_eq!(word(&store, run), "provisioning");
        assert_eq!(store.claims().dispatch_destroy(1, MAKER, true).await.unwrap(), Some(1));
        // How removing it went was not heard either.
        assert_eq!(store.claims().dispatch_destroy(1, REMOVER, true).await.unwrap(), None);
        assert_eq!(word(&store, run), "destroying");
        assert_eq!(store.claims().dispatch_destroy(1, MAKER, true).await.unwrap(), Some(2));
        assert!(!report(&store, E::DestroySucceeded, 1).await, "of a former attempt");
        assert!(report(&store, E::DestroySucceeded, 2).await);
        assert_eq!(word(&store, run), "destroyed");
    });
}

#[test]
fn l10_the_success_of_a_former_attempt_does_not_count_for_the_next() {
    on_every_store(|store, _| async move {
        let run = create(&store, &sequence(1)).await;
        assert!(matches!(provide(&store, run, MAKER, false).await, Provide::Make(_)));
        // MAKER never registered as a worker, so it counts as gone, and another worker starts again.
        let Provide::Make(again) = provide(&store, run, REMOVER, false).await else {
            panic!("it is to be made")
        };
        assert_eq!(again.provision_attempt, 2);
        assert!(!report(&store, E::ProvisionSucceeded, 1).await);
        assert_eq!(word(&store, run), "provisioning");
        assert!(report(&store, E::ProvisionSucceeded, 2).await);
        assert!(matches!(provide(&store, run, MAKER, true).await, Provide::Ready(_)));
    });
}

#[test]
fn l13_a_destroy_that_succeeds_after_it_was_made_again_is_nothing() {
    on_every_store(|store, _| async move {
        let run = ready(&store).await;
        end(&store).await;
        assert_eq!(store.claims().dispatch_destroy(1, REMOVER, true).await.unwrap(), Some(1));
        assert!(report(&store, E::DestroyFailed, 1).await);
        assert!(matches!(provide(&store, run, MAKER, false).await, Provide::Make(_)));
        assert!(report(&store, E::ProvisionSucceeded, 2).await);
        let before = story(&store);
        assert!(!report(&store, E::DestroySucceeded, 1).await);
        assert_eq!((word(&store, run), story(&store)), ("ready".into(), before));
    });
}

#[test]
fn l14_a_destroy_is_refused_while_its_run_lives() {
    on_every_store(|store, _| async move {
        let run = ready(&store).await;
        assert_eq!(store.claims().dispatch_destroy(1, REMOVER, true).await.unwrap(), None);
        assert_eq!(word(&store, run), "ready");
        end(&store).await;
        assert_eq!(store.claims().dispatch_destroy(1, REMOVER, true).await.unwrap(), Some(1));
        assert_eq!(word(&store, run), "destroying");
    });
}

#[test]
fn l14_the_failure_of_a_former_attempt_is_superseded() {
    on_every_store(|store, _| async move {
        let run = ready(&store).await;
        end(&store).await;
        assert_eq!(store.claims().dispatch_destroy(1, REMOVER, true).await.unwrap(), Some(1));
        // The remover is not known as a worker, so that another may begin again.
        assert_eq!(store.claims().dispatch_destroy(1, MAKER, true).await.unwrap(), Some(2));
        assert!(!report(&store, E::DestroyFailed, 1).await);
        assert_eq!(word(&store, run), "destroying");
        assert!(report(&store, E::DestroySucceeded, 2).await);
        assert_eq!(word(&store, run), "destroyed");
    });
}

#[test]
fn w13_the_journal_shows_the_removal_of_an_environment() {
    on_every_store(|store, _| async move {
        let run = ready(&store).await;
        end(&store).await;
        assert_eq!(store.claims().dispatch_destroy(1, REMOVER, true).await.unwrap(), Some(1));
        assert!(report(&store, E::DestroySucceeded, 1).await);
        let told = look(&store, |db| db.journal(0, Some(run), 1000));
        let told: Vec<&str> =
            told.iter().filter(|entry| entry.entity == "environment").map(|entry| entry.event).collect();
        let all = ["environment.created", "provision.succeeded", "destroy.dispatched", "destroy.succeeded"];
        assert_eq!(told, all);
        let notes = look(&store, |db| db.journal(0, Some(run), 1000));
        let notes =
            notes.iter().filter(|entry| entry.entity == "environment").map(|entry| entry.note.as_deref());
        assert!(notes.into_iter().all(|note| note == Some(r#"{"path":"/w"}"#)));
    });
}

/// Registers a live worker.
async fn register(store: &Store, id: Id) {
    let (name, process, queues) = ("one".into(), "one".into(), "".into());
    let new = NewWorker { id, name, process, queues, labels: "".into(), slots: 1, lease_ms: 1000 };
    store.claims().register(new).await.unwrap();
}

/// Returns a run that is reserved for worker 5, with a ready environment.
async fn of_worker_5(store: &Store) -> RunId {
    register(store, 5).await;
    register(store, REMOVER).await;
    let mut new = store.person().new_run(sequence(1));
    new.pin = Some(5);
    let Created::New(run) = store.person().create_run(new).await.unwrap() else { panic!() };
    assert!(matches!(provide(store, run, 5, false).await, Provide::Make(_)));
    assert!(report(store, E::ProvisionSucceeded, 1).await);
    run
}

async fn take(store: &Store) -> Option<u32> {
    store.claims().take_environment_of_dead_run(1, REMOVER).await.unwrap()
}

async fn worker_5_dies(store: &Store) {
    let _ = store.reaper().worker_lost(5, Lost::ProcessGone).await.unwrap();
}

#[test]
fn w09_only_a_dead_run_gives_its_environment_away() {
    on_every_store(|store, _| async move {
        let run = of_worker_5(&store).await;
        assert_eq!(take(&store).await, None, "its process lives");
        worker_5_dies(&store).await;
        assert_eq!(take(&store).await, Some(1));
        // A process that resumes the run now has to wait, and then makes another environment elsewhere.
        assert!(matches!(provide(&store, run, MAKER, true).await, Provide::Busy(_)));
        assert!(report(&store, E::DestroySucceeded, 1).await);
        let Provide::Make(row) = provide(&store, run, MAKER, false).await else { panic!("it is to be made") };
        assert_eq!((row.provision_attempt, &*row.path), (2, "/w-2"));
    });
    // Another worker has already taken the run over.
    on_every_store(|store, _| async move {
        let run = of_worker_5(&store).await;
        worker_5_dies(&store).await;
        register(&store, MAKER).await;
        assert!(store.executor().pin_run(run, Some(MAKER)).await.unwrap());
        assert_eq!(take(&store).await, None);
        assert!(matches!(provide(&store, run, MAKER, true).await, Provide::Ready(_)));
    });
    // The run is not reserved: a worker may still claim it.
    on_every_store(|store, _| async move {
        let run = of_worker_5(&store).await;
        worker_5_dies(&store).await;
        assert!(store.executor().pin_run(run, None).await.unwrap());
        assert_eq!(take(&store).await, None);
    });
}
