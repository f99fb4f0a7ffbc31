//! The document that describes the API: made from the code, and completed here with the parts that
//! all calls share.

use std::sync::LazyLock;

use axum::Json;
use serde_json::{Map, Value, json};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use super::CALLS;

/// The description of the API as a whole.
#[derive(OpenApi)]
#[openapi(info(title = "Keyfall", description = "Reminders that are Redis keys"))]
struct Document;

/// The form of a job key, except the lengths of its segments.
const KEY: &str =
    r"^[A-Za-z0-9_.\-]+:[A-Za-z0-9_.\-]+:[A-Za-z0-9_.\-]+:[^:*{}\s\x00-\x1f\x7f-\x9f]+$";

/// The answers that every call can give, and the further answers of calls with a body.
const ANY: [(&str, &str); 6] = [
    ("400", "A part of the request is not valid"),
    ("401", "No token, or an unknown token"),
    ("403", "A token without this scope, or not for these jobs"),
    ("429", "Too many requests"),
    ("500", "The stored data is damaged, or of another version"),
    (
        "503",
        "Redis does not answer or takes no writes, or the daemon stops: try again",
    ),
];
const WITH_BODY: [(&str, &str); 2] = [
    ("408", "The body did not come in time"),
    ("413", "The body is too large"),
];

/// This document.
#[utoipa::path(get, path = "/v1/openapi.json", operation_id = "get_openapi", tag = "about",
    responses((status = 200, description = "An OpenAPI 3.1 document", body = serde_json::Value)))]
pub(super) async fn show() -> Json<&'static Value> {
    Json(&DOCUMENT)
}

/// The document, which is made when somebody asks for it.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let router = OpenApiRouter::with_openapi(Document::openapi());
    let documented = CALLS
        .iter()
        .fold(router, |router, calls| router.routes((calls.document)()));
    completed(documented.get_openapi())
});

/// Adds the parts that all calls share.
fn completed(document: &utoipa::openapi::OpenApi) -> Value {
    let mut document = serde_json::to_value(document).expect("a document is JSON");
    document["components"]["securitySchemes"] =
        json!({"token": {"type": "http", "scheme": "bearer"}});
    for (path, calls) in objects(&mut document["paths"]) {
        for (_, call) in objects(calls) {
            complete(path, call.as_object_mut().expect("a call"));
        }
    }
    open_parts(&mut document["components"]["schemas"]);
    document
}

/// Lets the parts of an object have the fields of its other parts: a limit in a request allows no
/// unknown field, and as a part of an answer has others beside it.
fn open_parts(schemas: &mut Value) {
    let all = schemas.clone();
    for (_, schema) in objects(schemas) {
        let parts = schema.get_mut("allOf").and_then(Value::as_array_mut);
        for part in parts.into_iter().flatten() {
            let name = part["$ref"].as_str().and_then(|it| it.rsplit('/').next());
            let mut named = name.map_or(Value::Null, |name| all[name].clone());
            if named["additionalProperties"] == json!(false) {
                named
                    .as_object_mut()
                    .expect("a schema")
                    .remove("additionalProperties");
                *part = named;
            }
        }
    }
}

fn objects(of: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    of.as_object_mut().into_iter().flatten()
}

fn complete(path: &str, call: &mut Map<String, Value>) {
    if path.contains("{key}") {
        let parameters = call.entry("parameters").or_insert_with(|| json!([]));
        let key = json!({
            "name": "key", "in": "path", "required": true,
            "description": "The job key, percent-encoded where its id has a `/` or the like",
            "schema": {"type": "string", "pattern": KEY},
            "example": "app1:trans:notice:42",
        });
        parameters.as_array_mut().expect("a list").push(key);
    }
    let has_body = call.contains_key("requestBody");
    let answers = call.entry("responses").or_insert_with(|| json!({}));
    let answers = answers.as_object_mut().expect("answers by status");
    let is_open = super::front::OPEN.contains(&path);
    if !is_open {
        let with_body = WITH_BODY.iter().filter(|_| has_body);
        for (status, what) in ANY.iter().chain(with_body) {
            let problem = || {
                json!({"description": what, "content": {"application/json": {
                "schema": {"$ref": "#/components/schemas/Problem"}}}})
            };
            answers.entry(*status).or_insert_with(problem);
        }
    }
    for (status, answer) in answers {
        let content = answer.get_mut("content").and_then(Value::as_object_mut);
        if let Some(content) = content
            && status.as_str() >= "400"
            && let Some(body) = content.remove("application/json")
        {
            content.insert("application/problem+json".to_owned(), body);
        }
    }
    if !is_open {
        call.insert("security".to_owned(), json!([{}, {"token": []}]));
    }
}
