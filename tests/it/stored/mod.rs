//! `docs/stored.md`, the schema of what is stored in Redis, held against a Redis on which every
//! feature was used: each write has a row, and each row was written.

mod scene;
mod schema;
mod writes;

use keyfall::embedded::Embedded;

use schema::Schema;
use writes::Writes;

/// All that one server stores while the scene plays, also what is gone again at its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_describes_each_write_and_nothing_else() {
    let mut schema = Schema::read();
    let single = Embedded::start().await.unwrap();
    let writes = Writes::of(&single).await;
    scene::play_all(&single.url()).await;
    for stored in writes.end().await {
        schema.meets(&stored);
    }
    for stored in writes::present(&single.url()).await {
        schema.meets(&stored);
    }

    let pair = [
        Embedded::start().await.unwrap(),
        Embedded::start().await.unwrap(),
    ];
    let writes = Writes::of(&pair[0]).await;
    scene::play_on_several(&pair).await;
    for stored in writes.end().await {
        schema.meets(&stored);
    }
    schema.assert_kept();
}
