//! What the model of the demo says: made from a seed, or taken from a transcript.

use std::path::Path;

use stepwell::content::{AssistantMessage, Block, RawJson, Usage, UserMessage};
use stepwell::event::Body;
use stepwell::journal::Seq;
use stepwell::store::{ReplayError, Session};

use crate::transcript::{Report, Step, Transcript, TranscriptError, Turn};

/// What stands for the user when a transcript's model speaks on after its answer.
const CONTINUED: &str = "[the transcript goes on without a user's text]";

/// A small generator of numbers (SplitMix64): the same seed gives the same demo.
#[derive(Debug, Clone)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Another generator, for one purpose.
    pub(super) fn fork(&self, purpose: u64) -> Dice {
        let mut dice = Dice(self.0 ^ purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Dice(dice.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below the bound.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn pick<'a>(&mut self, among: &[&'a str]) -> &'a str {
        let at = usize::try_from(self.below(among.len() as u64)).unwrap_or(0);
        among.get(at).copied().unwrap_or_default()
    }
}

/// Where the scripts of the rounds come from; every round is a session of its own.
#[derive(Debug)]
pub(super) enum Source {
    /// Made anew for each round.
    Seed(u64),
    /// The same for each round.
    Recorded(Script),
}

/// The turns of one round.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Script {
    pub(super) turns: Vec<Turn>,
    /// Whether the results are recorded: real tools make them otherwise.
    pub(super) recorded: bool,
}

impl Source {
    /// Reads the transcript, if there is one, and says what of it is not used.
    pub(super) fn new(
        seed: u64,
        transcript: Option<&Path>,
    ) -> Result<(Source, Report), TranscriptError> {
        match transcript {
            None => Ok((Source::Seed(seed), Report::default())),
            Some(path) => {
                let read = Transcript::open(path)?;
                Ok((Source::Recorded(Script::recorded(read.turns)), read.report))
            }
        }
    }

    pub(super) fn round(&self, round: u64) -> Script {
        match self {
            Source::Seed(seed) => Script::made(&mut Dice::new(*seed).fork(round + 1)),
            Source::Recorded(script) => script.clone(),
        }
    }
}

impl Script {
    /// The runner ends a turn with an answer without calls: what a transcript's model says after one
    /// stands in a turn of its own.
    fn recorded(turns: Vec<Turn>) -> Script {
        let mut script = Script {
            turns: Vec::new(),
            recorded: true,
        };
        for turn in turns {
            let mut user = turn.user;
            let mut steps = Vec::new();
            let mut answered = false;
            for step in turn.steps {
                let ends = step.assistant.tool_uses().next().is_none();
                steps.push(step);
                if ends {
                    let steps = std::mem::take(&mut steps);
                    script.turns.push(Turn { user, steps });
                    user = UserMessage::text(CONTINUED);
                    answered = true;
                }
            }
            if !(answered && steps.is_empty()) {
                script.turns.push(Turn { user, steps });
            }
        }
        script
    }

    fn made(dice: &mut Dice) -> Script {
        let turns = 2 + dice.below(3);
        let turns = (0..turns).map(|number| {
            let user = UserMessage::text(format!("Task {}: {}.", number + 1, words(dice, 8)));
            let batches = 1 + dice.below(4);
            let mut steps: Vec<Step> = (0..batches).map(|_| working_step(dice)).collect();
            steps.push(Step {
                assistant: AssistantMessage::text(format!("Done: {}.", words(dice, 12)))
                    .with_usage(usage(dice)),
                results: Vec::new(),
            });
            Turn { user, steps }
        });
        Script {
            turns: turns.collect(),
            recorded: false,
        }
    }

    pub(super) fn step(&self, place: Place) -> Option<&Step> {
        self.turns.get(place.turn)?.steps.get(place.step)
    }

    /// The names of the tools that are called.
    pub(super) fn tools(&self) -> Vec<String> {
        let steps = self.turns.iter().flat_map(|turn| &turn.steps);
        let calls = steps.flat_map(|step| step.assistant.tool_uses());
        let mut names: Vec<String> = calls.map(|call| call.name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }
}

/// A step that calls one to three tools, sometimes with a thought before it.
fn working_step(dice: &mut Dice) -> Step {
    let mut assistant = AssistantMessage::default();
    if dice.below(3) == 0 {
        assistant = assistant.with_block(Block::Thinking(stepwell::content::Thinking {
            thinking: words(dice, 20),
            signature: format!("{:016x}", dice.next()),
            signature_format: "demo".to_owned(),
            ..Default::default()
        }));
    }
    assistant = assistant.with_block(Block::text(words(dice, 6)));
    for number in 0..=dice.below(3) {
        let path = dice.pick(&["a.txt", "b.txt", "notes/c.txt", "notes/d.txt"]);
        let (name, input) = match dice.below(4) {
            0 => ("list_files", serde_json::json!({})),
            1 => ("read_file", serde_json::json!({ "path": path })),
            _ => {
                // Now and then a large one, so that the log grows into further segments.
                let length = if dice.below(8) == 0 { 3_000 } else { 15 };
                let content = words(dice, length);
                (
                    "write_file",
                    serde_json::json!({ "path": path, "content": content }),
                )
            }
        };
        let input = RawJson::parse(input.to_string()).unwrap_or_else(|_| RawJson::empty_object());
        assistant = assistant.with_tool_use(format!("call-{}", number + 1), name, input);
    }
    Step {
        assistant: assistant.with_usage(usage(dice)),
        results: Vec::new(),
    }
}

fn usage(dice: &mut Dice) -> Usage {
    Usage {
        input_tokens: 100 + dice.below(900),
        output_tokens: 10 + dice.below(90),
        ..Usage::default()
    }
}

fn words(dice: &mut Dice, count: u64) -> String {
    const WORDS: [&str; 16] = [
        "well",
        "step",
        "stone",
        "water",
        "deep",
        "stairs",
        "rope",
        "bucket",
        "naïve",
        "rain",
        "shade",
        "carved",
        "old",
        "cool",
        "水",
        "\"quoted\"",
    ];
    let chosen: Vec<&str> = (0..count).map(|_| dice.pick(&WORDS)).collect();
    chosen.join(" ")
}

/// What of a script comes next, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Place {
    pub(super) turn: usize,
    pub(super) step: usize,
}

impl Place {
    /// Finds the place in the history of a session: a turn that was interrupted is begun again, and
    /// goes on behind its last committed step.
    pub(super) fn in_session(session: &Session, script: &Script) -> Result<Place, ReplayError> {
        let mut place = Place::default();
        for committed in session.replay(Seq::new(1)) {
            match &committed?.event().body {
                Body::StepDone(_) => place.step += 1,
                Body::TurnDone(_) | Body::TurnFailed(_) => place.next_turn(),
                _ => {}
            }
        }
        let steps = script
            .turns
            .get(place.turn)
            .map_or(0, |turn| turn.steps.len());
        // Only its end was cut off.
        if place.step > 0 && place.step >= steps {
            place.next_turn();
        }
        Ok(place)
    }

    pub(super) fn next_turn(&mut self) {
        self.turn += 1;
        self.step = 0;
    }

    pub(super) fn plus(self, steps: usize) -> Place {
        Place {
            step: self.step + steps,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_script_per_round() {
        let source = Source::Seed(7);
        assert_eq!(source.round(3), source.round(3));
        assert_ne!(source.round(3), source.round(4));
        assert_ne!(source.round(3), Source::Seed(8).round(3));
        for round in 0..50 {
            let script = source.round(round);
            assert!((2..=4).contains(&script.turns.len()));
            for turn in &script.turns {
                let (last, before) = turn.steps.split_last().unwrap();
                assert!(last.assistant.tool_uses().next().is_none());
                assert!(
                    before
                        .iter()
                        .all(|step| step.assistant.tool_uses().next().is_some())
                );
                assert!((1..=4).contains(&before.len()));
            }
        }
    }

    #[test]
    fn a_recorded_answer_behind_an_answer_gets_a_turn_of_its_own() {
        let says = |text: &str| Step {
            assistant: AssistantMessage::text(text),
            results: Vec::new(),
        };
        let calls = Step {
            assistant: AssistantMessage::default().with_tool_use("c", "t", RawJson::empty_object()),
            results: Vec::new(),
        };
        let turn = |user: &str, steps: Vec<Step>| Turn {
            user: UserMessage::text(user),
            steps,
        };
        let script = Script::recorded(vec![
            turn(
                "one",
                vec![calls.clone(), says("a"), says("b"), calls.clone()],
            ),
            turn("nothing", vec![]),
            turn("two", vec![says("c")]),
        ]);
        let expected = [
            turn("one", vec![calls.clone(), says("a")]),
            turn(CONTINUED, vec![says("b")]),
            turn(CONTINUED, vec![calls]),
            turn("nothing", vec![]),
            turn("two", vec![says("c")]),
        ];
        assert_eq!(script.turns, expected);
        assert_eq!(script.tools(), ["t"]);
    }
}
