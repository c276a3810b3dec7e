//! The OpenAPI document, made from the code of the requests.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::header;
use axum::response::IntoResponse;
use utoipa::openapi::OpenApi as Document;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};

use crate::problem::ProblemBody;
use crate::{acquire, changes, check, engine, health, hold, leases, operator, runs};

#[derive(OpenApi)]
#[openapi(
    info(title = "fencepost", description = "Locks over HTTP, in front of any engine"),
    paths(
        acquire::acquire,
        acquire::withdraw,
        hold::hold,
        leases::extend,
        leases::release,
        leases::show_lease,
        operator::list,
        operator::show,
        check::check,
        operator::evict,
        changes::changes,
        engine::engine,
        runs::read,
        runs::write,
        health::alive,
        health::ready,
        health::metrics,
    ),
    components(schemas(ProblemBody)),
    modifiers(&AccessToken),
    security((), ("access_token" = []))
)]
struct Api;

/// The access token of a caller. A service without access tokens needs none.
struct AccessToken;

impl Modify for AccessToken {
    fn modify(&self, document: &mut Document) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        document.components.get_or_insert_default().add_security_scheme("access_token", scheme);
    }
}

/// Made once: anybody may ask for it.
static DOCUMENT: LazyLock<Bytes> =
    LazyLock::new(|| serde_json::to_vec(&Api::openapi()).unwrap_or_default().into());

pub(crate) async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.clone())
}
