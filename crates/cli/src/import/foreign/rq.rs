//! A job of rq: a hash, whose `data` is a call of a function, compressed, pickled or as JSON.

use std::io::Read;

use flate2::read::ZlibDecoder;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_pickle::DeOptions;

use super::{Naming, Pending, utf8};
use crate::import::Fault;
use crate::import::entry::Entry;
use crate::import::layout::{Unit, due};

pub(super) const FIELDS: &[&str] = &["data"];

/// The most bytes of a call: more is no payload.
const LONGEST: u64 = 64 << 20;

/// The name of the function, the object whose method it is, and the arguments.
#[derive(Deserialize)]
struct Call(String, Option<Value>, Vec<Value>, Map<String, Value>);

#[derive(Serialize)]
struct Payload {
    args: Vec<Value>,
    kwargs: Map<String, Value>,
}

pub(super) fn entry(
    naming: &Naming,
    member: &[u8],
    score: f64,
    fields: &[Option<Vec<u8>>],
) -> Option<Result<Entry, Fault>> {
    // Without data it has ended.
    let data = fields.first()?.as_ref()?;
    let read = || {
        let Call(name, object, args, kwargs) = call(data)?;
        if object.is_some() {
            return Err(Fault::Invalid(format!(
                "it calls the method {name} of a pickled object: only Python can read it"
            )));
        }
        let payload = serde_json::to_vec(&Payload { args, kwargs }).map_err(|e| e.to_string())?;
        naming.entry(&Pending {
            id: utf8(member)?,
            name: &name,
            due: due(score, Unit::S)?,
            payload: &payload,
        })
    };
    Some(read())
}

fn call(data: &[u8]) -> Result<Call, String> {
    let mut plain = Vec::new();
    let read = ZlibDecoder::new(data).take(LONGEST).read_to_end(&mut plain);
    read.map_err(|error| format!("its data is not compressed by zlib: {error}"))?;
    if plain.first() == Some(&b'[') {
        return serde_json::from_slice(&plain)
            .map_err(|error| format!("its data is not a call in JSON: {error}"));
    }
    // Reads values only, and makes no objects.
    serde_pickle::from_slice(&plain, DeOptions::new()).map_err(|error| {
        format!(
            "its arguments are pickled, and hold a value that JSON does not have ({error}): \
             schedule this job anew"
        )
    })
}
