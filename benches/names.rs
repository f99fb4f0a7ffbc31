//! The costs of a name, without Redis: parsing it, finding its route, and rejecting foreign names.
//!
//! ```sh
//! cargo bench -p keyfall-benches
//! ```

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use keyfall::internals::NameFilter;
use keyfall::{JobKey, Router};

/// How many names one round handles.
const NAMES: usize = 1000;

fn names(of: impl Fn(usize) -> String) -> Vec<String> {
    (0..NAMES).map(of).collect()
}

/// A worker of some size: a hundred kinds of its own, and wildcards over more.
fn router() -> Router {
    let mut router = Router::new();
    for number in 0..100 {
        router = router.route(&format!("app1:module{number}:notice:{{id}}"), async || {});
    }
    router
        .route("app1:trans:notice:{order}", async || {})
        .route("app1:*:cleanup:{id}", async || {})
        .route("app1:trans:split:{id:large-.*}", async || {})
        .route("app1:trans:split:{id:small-.*}", async || {})
}

fn ears() -> NameFilter {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    NameFilter::new(router()).expect("routes that do not clash")
}

fn parsing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parse");
    group.throughput(Throughput::Elements(NAMES as u64));
    let keys = names(|number| format!("app1:trans:notice:{number:06}"));
    group.bench_function("job key", |bencher| {
        bencher.iter(|| {
            for key in &keys {
                black_box(JobKey::parse(black_box(key)).is_ok());
            }
        });
    });
    group.finish();
}

fn routing(criterion: &mut Criterion) {
    let ears = ears();
    let mut group = criterion.benchmark_group("route");
    group.throughput(Throughput::Elements(NAMES as u64));
    for (name, kind) in [
        ("literal kind", "app1:trans:notice:"),
        ("wildcard", "app1:orders:cleanup:"),
        ("by id", "app1:trans:split:small-"),
        ("none", "app1:trans:other:"),
    ] {
        let keys = names(|number| format!("{kind}{number:06}"));
        let keys: Vec<JobKey> = keys
            .iter()
            .map(|key| JobKey::parse(key).expect("valid"))
            .collect();
        let is_routed = ears.route(&keys[0]).is_some();
        assert_eq!(is_routed, name != "none", "{name}");
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                for key in &keys {
                    black_box(ears.route(black_box(key)));
                }
            });
        });
    }
    group.finish();
}

/// Every key with a TTL in the same database is heard when it expires.
fn filtering(criterion: &mut Criterion) {
    let ears = ears();
    let mut group = criterion.benchmark_group("filter");
    group.throughput(Throughput::Elements(NAMES as u64));
    for (name, prefix, is_ours) in [
        ("no colons", "session-9f86d081884c7d65", false),
        ("two segments", "cache:user-profile-", false),
        ("four segments, another kind", "shop:cart:reminder:", false),
        ("five segments", "app1:trans:notice:7:", false),
        ("ours", "app1:trans:notice:", true),
    ] {
        let names = names(|number| format!("{prefix}{number:06}"));
        assert_eq!(ears.recognise(names[0].as_bytes()), is_ours);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                for name in &names {
                    black_box(ears.recognise(black_box(name.as_bytes())));
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, parsing, routing, filtering);
criterion_main!(benches);
