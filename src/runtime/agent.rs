//! What a loop's runner is made of.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::hooks::{HookGuard, HookObserver, Hooks};
use super::tool::{AnyTool, keep};
use super::{Model, Policy, Tool, ToolSpec};
use crate::contain::Held;

/// The bounds of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnLimits {
    /// Steps with tool calls in one turn; 25 by default. Beyond it the turn fails before the batch
    /// runs.
    pub iterations: u32,
    /// Tool calls in one turn; 100 by default. Beyond it the turn fails before the batch runs.
    pub calls: u32,
    /// Calls of a step that run at once; 8 by default, at least 1.
    pub parallel: usize,
    /// Bytes of a result's text; 256 KiB by default. What is longer keeps its head and its tail
    /// around a marker. `None`: only the store's limits.
    pub result_bytes: Option<usize>,
    /// Bytes of one answer of the model; 8 MiB by default. Beyond it the turn fails.
    pub reply_bytes: usize,
    /// How long one call may take; unlimited by default. Needs a runtime with a timer
    /// ([`SpawnError::NoTimer`](super::SpawnError::NoTimer)).
    pub tool_timeout: Option<Duration>,
    /// Inputs that may wait behind the running turn; 64 by default.
    pub queue: usize,
}

impl Default for TurnLimits {
    fn default() -> Self {
        TurnLimits {
            iterations: 25,
            calls: 100,
            parallel: 8,
            result_bytes: Some(256 * 1024),
            reply_bytes: 8 * 1024 * 1024,
            tool_timeout: None,
            queue: 64,
        }
    }
}

/// A model, its tools and its bounds.
#[derive(Clone)]
pub struct AgentSpec {
    pub(super) model: Held<Arc<dyn Model>>,
    pub(super) tools: HashMap<String, Held<Arc<dyn AnyTool>>>,
    pub(super) specs: Vec<ToolSpec>,
    pub(super) policy: Option<Held<Arc<dyn Policy>>>,
    pub(super) limits: TurnLimits,
    pub(super) hooks: Hooks,
}

impl AgentSpec {
    /// An agent with a model and no tools.
    pub fn new(model: impl Model + 'static) -> AgentSpec {
        AgentSpec {
            model: Held::new(Arc::new(model)),
            tools: HashMap::new(),
            specs: Vec::new(),
            policy: None,
            limits: TurnLimits::default(),
            hooks: Hooks::default(),
        }
    }

    /// With another model.
    #[must_use]
    pub fn model(self, model: impl Model + 'static) -> AgentSpec {
        AgentSpec {
            model: Held::new(Arc::new(model)),
            ..self
        }
    }

    /// With a tool. A second one of the same name takes the place of the first.
    #[must_use]
    pub fn tool(self, tool: impl Tool) -> AgentSpec {
        self.shared_tool(Arc::new(tool))
    }

    /// With a tool that is shared with others.
    #[must_use]
    pub fn shared_tool(mut self, tool: Arc<impl Tool>) -> AgentSpec {
        let tool = keep(tool);
        let spec = tool.spec().clone();
        self.tools.insert(spec.name.clone(), Held::new(tool));
        self.specs.retain(|known| known.name != spec.name);
        self.specs.push(spec);
        self
    }

    /// With a policy; without one every call is allowed.
    #[must_use]
    pub fn policy(self, policy: impl Policy + 'static) -> AgentSpec {
        AgentSpec {
            policy: Some(Held::new(Arc::new(policy))),
            ..self
        }
    }

    /// With one more observer of its operations, behind those before it.
    #[must_use]
    pub fn observer(mut self, observer: impl HookObserver + 'static) -> AgentSpec {
        self.hooks.observe(Arc::new(observer));
        self
    }

    /// With one more guard of its operations, asked after those before it.
    #[must_use]
    pub fn guard(mut self, guard: impl HookGuard + 'static) -> AgentSpec {
        self.hooks.guard(Arc::new(guard));
        self
    }

    /// With other bounds.
    #[must_use]
    pub fn limits(self, limits: TurnLimits) -> AgentSpec {
        AgentSpec { limits, ..self }
    }
}

impl std::fmt::Debug for AgentSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentSpec")
            .field("tools", &self.specs)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
