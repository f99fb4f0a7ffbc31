//! Connects the tokens of the file to the HTTP API.

use std::sync::Arc;

use super::http;
use super::tokens::{Grant, Scope, Tokens};

impl http::Tokens for Tokens {
    fn check(&self, bearer: &str) -> Option<Arc<dyn http::Grant>> {
        let grant = Tokens::check(self, bearer)?;
        Some(grant)
    }
}

impl http::Grant for Grant {
    fn id(&self) -> &str {
        &self.id
    }

    fn note(&self) -> &str {
        &self.note
    }

    fn allows(&self, scope: http::Scope, prefix: &str) -> bool {
        let scope = match scope {
            http::Scope::Read => Scope::Read,
            http::Scope::Schedule => Scope::Schedule,
            http::Scope::Consume => Scope::Consume,
            http::Scope::Operate => Scope::Operate,
        };
        Grant::allows(self, scope, prefix)
    }

    fn scopes(&self) -> Vec<http::Scope> {
        let scopes = self.scopes.iter().map(|scope| match scope {
            Scope::Read => http::Scope::Read,
            Scope::Schedule => http::Scope::Schedule,
            Scope::Consume => http::Scope::Consume,
            Scope::Operate => http::Scope::Operate,
        });
        scopes.collect()
    }

    fn prefixes(&self) -> Vec<String> {
        self.prefixes.clone()
    }
}
