//! Layouts: the newest of all places holds, and new ledgers are told what the old ones keep.

use super::support::{Bench, soon};
use crate::embedded::Embedded;
use crate::error::ErrorKind;
use crate::key::Kind;
use crate::names::Names;
use crate::settings::LinkSettings;
use crate::shards::Layout;
use crate::store::Store;
use crate::store::kinds::layout::LayoutNotice;

fn layout(text: &str) -> Layout {
    Layout::parse(text).unwrap()
}

/// Stores a layout in the list of kinds.
async fn list(bench: &Bench, text: &str) {
    let kinds = bench.ledger.store.names().kinds();
    let _: u64 = bench
        .ask(&["HSET", &kinds, bench.ledger.kind().as_str(), text])
        .await;
}

/// The name of the hash in which this shard keeps its layout.
fn calls(bench: &Bench, shard: u16) -> String {
    let names = bench.ledger.store.names();
    names.ledger(bench.ledger.kind(), shard).calls
}

/// Stores a field in the ledger of this shard.
async fn tell(bench: &Bench, shard: u16, field: &str, text: &str) {
    let _: u64 = bench
        .ask(&["HSET", &calls(bench, shard), field, text])
        .await;
}

#[tokio::test]
async fn the_newer_layout_of_list_and_first_ledger_holds() {
    let bench = Bench::new().await;
    bench.balanced().await;
    let (store, kind) = (&bench.ledger.store, bench.ledger.kind());
    let looked_up = async || store.look_up(kind, soon()).await.unwrap();
    list(&bench, "2 5").await;
    assert_eq!(looked_up().await, layout("2 5"));
    // The list was rolled back by a fail-over.
    tell(&bench, 0, "layout", "4 7").await;
    assert_eq!(looked_up().await, layout("4 7"));
    list(&bench, "2 9").await;
    assert_eq!(looked_up().await, layout("2 9"));
}

#[tokio::test]
async fn a_layout_that_no_ledger_confirms_gives_way_to_the_listed_one() {
    let bench = Bench::new().await;
    bench.balanced().await;
    let (store, kind) = (&bench.ledger.store, bench.ledger.kind());
    list(&bench, "2 5").await;
    tell(&bench, 0, "layout", "2 4").await;
    store.learn_layout(kind, layout("4 9"));
    let looked_up = async || store.look_up(kind, soon()).await.unwrap();
    assert_eq!(looked_up().await, layout("2 5"));
    // Another ledger than the first may have it.
    store.learn_layout(kind, layout("4 9"));
    tell(&bench, 3, "layout", "4 8").await;
    assert_eq!(looked_up().await, layout("4 8"));
}

#[tokio::test]
async fn each_field_of_a_ledger_is_passed_on_to_new_ledgers() {
    for (stored, kept) in [
        (&[("paused", "17")][..], "17--"),
        (&[("history", "100")], "--100"),
        (&[("layout", "2 5"), ("turn", "3")], "-3-"),
        (
            &[("layout", "2 5"), ("paused", "17"), ("turn", "3")],
            "173-",
        ),
        // The kind is being founded, and the fields of this ledger come later.
        (
            &[("layout", "2 5"), ("founding", "1"), ("turn", "3")],
            "---",
        ),
        (&[], "---"),
    ] {
        let bench = Bench::new().await;
        bench.balanced().await;
        for (field, text) in stored {
            // The first ledger knows nothing, and the next one is asked.
            tell(&bench, 1, field, text).await;
        }
        let news = LayoutNotice::new(bench.ledger.kind(), layout("2 5"), 2);
        let fields = bench.ledger.store.kept_of_kind(&news, soon()).await;
        let fields = fields
            .unwrap()
            .map(|(_, value)| value.unwrap_or("-".to_owned()));
        assert_eq!(fields.concat(), kept, "{stored:?}");
    }
}

#[tokio::test]
async fn a_ledger_that_cannot_be_read_is_not_taken_for_a_new_one() {
    let bench = Bench::new().await;
    bench.balanced().await;
    let _: String = bench
        .ask(&["SET", &calls(&bench, 0), "of another program"])
        .await;
    let news = LayoutNotice::new(bench.ledger.kind(), layout("2 5"), 2);
    // Its kind may be paused, which the new ledger would not know.
    let fields = bench.ledger.store.kept_of_kind(&news, soon()).await;
    assert_eq!(fields.unwrap_err().kind(), ErrorKind::Damaged);
}

/// A store on two servers, of which the second is away, and a kind whose first ledger is on the
/// first.
async fn of_two() -> (Embedded, std::sync::Arc<Store>, Kind) {
    let server = Embedded::start().await.unwrap();
    let urls = format!("{} redis://127.0.0.1:1", server.url());
    let store = Store::new(&urls, Names::new("keyfall"), &LinkSettings::default()).unwrap();
    let kinds = (0..).map(|number| Kind::parse(&format!("app{number}:trans:notice")).unwrap());
    let kind = kinds.into_iter().find(|kind| store.place_of(kind, 0) == 0);
    (server, store, kind.unwrap())
}

#[tokio::test]
async fn a_server_that_is_away_may_have_the_newer_layout() {
    let (_server, store, kind) = of_two().await;
    store.learn_layout(&kind, layout("4 9"));
    let looked_up = store.look_up(&kind, soon()).await.unwrap();
    assert_eq!(looked_up, layout("4 9"));
}

#[tokio::test]
async fn of_several_servers_only_those_that_are_away_are_passed_over() {
    let (server, store, kind) = of_two().await;
    let bench = Bench::of(&server.url(), kind.clone()).await;
    bench.balanced().await;
    let shards = (0..).filter(|shard| store.place_of(&kind, *shard) == 0);
    let [here, there]: [u16; 2] = [
        shards.clone().nth(1).unwrap(),
        (0..)
            .find(|shard| store.place_of(&kind, *shard) == 1)
            .unwrap(),
    ];
    let news = LayoutNotice::new(&kind, layout("9 5"), here.max(there) + 1);
    tell(&bench, here, "paused", "17").await;
    let fields = store.kept_of_kind(&news, soon()).await.unwrap();
    assert_eq!(fields[0], ("paused", Some("17".to_owned())));
    let _: String = bench
        .ask(&["SET", &calls(&bench, 0), "of another program"])
        .await;
    let fields = store.kept_of_kind(&news, soon()).await;
    assert_eq!(fields.unwrap_err().kind(), ErrorKind::Damaged);
}
