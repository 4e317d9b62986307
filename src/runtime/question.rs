//! A question to a person.

use std::time::Duration;

use serde::Serialize;

use super::{APPROVE, DENY};
use crate::content::RawJson;
use crate::event::{Control, Gate, Prompt, Resolver};
use crate::identity::GateId;
use crate::store::{GatedCall, PERMISSION, USER_INPUT};

/// How long a question waits unless it says otherwise.
const PATIENCE: Duration = Duration::from_secs(5 * 60);

/// A question to a person: what they are shown, what they may answer, and what happens when they do
/// not.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    kind: &'static str,
    prompt: Prompt,
    timeout: Option<Duration>,
    default: String,
}

impl Question {
    /// Whether a call may run, with the answers [`APPROVE`] and [`DENY`]. After five minutes
    /// without an answer it is denied.
    pub fn permission(text: impl Into<String>) -> Question {
        let question = Question::of(PERMISSION, text.into(), DENY);
        question.choice(APPROVE).choice(DENY)
    }

    /// What a tool wants to know: free text, or one of the choices if there are any. After five
    /// minutes without an answer there is none.
    pub fn input(text: impl Into<String>) -> Question {
        Question::of(USER_INPUT, text.into(), "")
    }

    fn of(kind: &'static str, body: String, default: &str) -> Question {
        Question {
            kind,
            prompt: Prompt {
                body,
                ..Prompt::default()
            },
            timeout: Some(PATIENCE),
            default: default.to_owned(),
        }
    }

    /// With a title.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Question {
        self.prompt.title = title.into();
        self
    }

    /// With one more answer to choose from; people are shown the action itself.
    #[must_use]
    pub fn choice(self, action: impl Into<String>) -> Question {
        let action = action.into();
        let label = action.clone();
        self.control(action, label)
    }

    /// With one more answer to choose from, and what people are shown for it.
    #[must_use]
    pub fn control(mut self, action: impl Into<String>, label: impl Into<String>) -> Question {
        self.prompt.controls.push(Control {
            action: action.into(),
            label: label.into(),
        });
        self
    }

    /// After how long without an answer which action counts as chosen; an empty one: none.
    /// Needs a runtime with a timer, as every question with a timeout does: without one it is not asked
    /// ([`AskError::NoTimer`](super::AskError::NoTimer)). An answer that is
    /// committed first wins. After a restart nobody waits, and the question stays open.
    #[must_use]
    pub fn timeout(self, after: Duration, action: impl Into<String>) -> Question {
        Question {
            timeout: Some(after),
            default: action.into(),
            ..self
        }
    }

    /// Waits for ever.
    #[must_use]
    pub fn without_timeout(self) -> Question {
        Question {
            timeout: None,
            ..self
        }
    }

    pub(super) fn kind(&self) -> &'static str {
        self.kind
    }

    pub(super) fn prompt(&self) -> &Prompt {
        &self.prompt
    }

    /// After how long it answers itself, and what.
    pub(super) fn policy(&self) -> Option<(Duration, &str)> {
        Some((self.timeout?, &self.default))
    }

    /// The gate that asks it about a call.
    pub(super) fn gate(&self, id: GateId, call: &GatedCall) -> Gate {
        #[derive(Serialize)]
        struct Subject<'a> {
            tool: &'a str,
            call_id: &'a str,
        }
        #[derive(Serialize)]
        struct Response<'a> {
            timeout_ms: u64,
            action: &'a str,
        }
        let subject = Subject {
            tool: &call.tool,
            call_id: &call.call_id,
        };
        let response = self.policy().map(|(after, action)| Response {
            timeout_ms: u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
            action,
        });
        Gate {
            id,
            kind: self.kind.to_owned(),
            resolver: Resolver::for_loop(),
            blocks: "tool_call".to_owned(),
            subject: RawJson::from_serialize(&subject).ok(),
            prompt: Some(self.prompt.clone()),
            response_policy: response.and_then(|it| RawJson::from_serialize(&it).ok()),
            restorable: true,
            payload: RawJson::from_serialize(call).ok(),
            ..Gate::default()
        }
    }
}
