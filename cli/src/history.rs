//! `stepwell history`: the committed messages of a session, for reading.

use serde::Serialize;
use stepwell::Store;
use stepwell::content::{Block, Message};
use stepwell::identity::{LoopId, SessionId, StepId, Timestamp, TurnId};
use stepwell::journal::Seq;
use stepwell::store::{Mode, Session};

use crate::Verdict;
use crate::args::HistoryArgs;
use crate::failure::{Failure, one_line};
use crate::output::{Output, complain, count, short, visible, when};
use crate::story::{Item, Said, Story};
use crate::target;

/// Lines of one block and characters of one tool input that are shown to a person.
const BLOCK_LINES: usize = 60;
const INPUT_WIDTH: usize = 200;

/// One line of `--json`.
#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Message {
        seq: u64,
        #[serde(rename = "loop")]
        loop_id: LoopId,
        turn: TurnId,
        /// `null` for what a user said.
        step: Option<StepId>,
        created_at: Option<Timestamp>,
        proven: bool,
        message: &'a Message,
    },
    Gap {
        /// What cannot be read here.
        gap: String,
    },
}

pub(crate) fn run(args: &HistoryArgs, out: &mut Output) -> Result<Verdict, Failure> {
    let store = Store::open_existing(&args.dir)?;
    let id = target::session(&store, &args.session)?;
    let (session, report) = store.open_session(id, Mode::Read)?;
    // Read twice, so that no message has to be kept.
    let mut story = Story::read(&session, args.at.map(Seq::new));
    if let Some(at) = args.at.filter(|at| *at > session.last_seq().get()) {
        let last = session.last_seq();
        complain(&format!("note: the session ends at {last}, before {at}"));
    }
    let damage = report.damage.filter(|_| !story.has_gaps);
    story.has_gaps |= damage.is_some();
    let shown = choose_loop(&story, args.loop_name.as_deref())?;
    let belongs = |item: &Item| match item {
        Item::Said(said) => Some(said.loop_id) == shown,
        Item::Note { loop_id, .. } => Some(*loop_id) == shown,
        Item::Gap(_) => true,
    };
    let last = damage.map(|damage| Item::Gap(damage.to_string()));
    let items = story.items(&session).chain(last).filter(belongs);
    if args.json {
        print_json(items, out)?;
    } else {
        head(id, &session, &story, shown, out)?;
        print(items, out)?;
    }
    Ok(match story.has_gaps {
        true => Verdict::Bad,
        false => Verdict::Ok,
    })
}

/// The named loop, or the first one; `None` if there is none yet.
fn choose_loop(story: &Story, name: Option<&str>) -> Result<Option<LoopId>, Failure> {
    let Some(name) = name else {
        return Ok(story.loops.first().map(|(id, _)| *id));
    };
    let found = story.loops.iter().find(|(_, known)| known.as_str() == name);
    match found {
        Some((id, _)) => Ok(Some(*id)),
        None => Err(Failure::NoSuchLoop {
            given: name.to_owned(),
            known: story
                .loops
                .iter()
                .map(|(_, name)| name.to_string())
                .collect(),
        }),
    }
}

fn print_json(items: impl Iterator<Item = Item>, out: &mut Output) -> Result<(), Failure> {
    for item in items {
        let line = match &item {
            Item::Said(said) => Line::Message {
                seq: said.seq.get(),
                loop_id: said.loop_id,
                turn: said.turn,
                step: (!said.step.is_nil()).then_some(said.step),
                created_at: said.at,
                proven: said.proven,
                message: &said.message,
            },
            Item::Gap(text) => Line::Gap {
                gap: one_line(text),
            },
            Item::Note { .. } => continue,
        };
        out.json(&line)?;
        if out.is_closed() {
            break;
        }
    }
    Ok(())
}

/// What is shown: the session, its title, its loop, and the other loops that it has.
fn head(
    id: SessionId,
    session: &Session,
    story: &Story,
    shown: Option<LoopId>,
    out: &mut Output,
) -> Result<(), Failure> {
    match session.title() {
        Some(title) => out.line(&format!("{id}  {}", one_line(&title)))?,
        None => out.line(&id.to_string())?,
    }
    let name = |wanted: bool| {
        let named = story.loops.iter();
        named
            .filter(move |(id, _)| (Some(*id) == shown) == wanted)
            .map(|(_, name)| one_line(name.as_str()))
            .collect::<Vec<String>>()
    };
    let messages = shown.map_or(0, |shown| story.messages(shown));
    out.line(&format!(
        "loop {}, {}",
        name(true).first().map_or("-", |name| name.as_str()),
        count(messages as u64, "message", "messages")
    ))?;
    let others = name(false);
    if !others.is_empty() {
        out.line(&format!("other loops (--loop NAME): {}", others.join(", ")))?;
    }
    Ok(())
}

fn print(items: impl Iterator<Item = Item>, out: &mut Output) -> Result<(), Failure> {
    let now = Timestamp::now();
    let mut last = Seq::ZERO;
    for item in items {
        match item {
            Item::Said(said) => {
                if said.seq != last {
                    out.line("")?;
                }
                print_message(&said, said.seq != last, now, out)?;
                last = said.seq;
            }
            Item::Note { text, .. } => {
                out.line(&format!("\n       ({})", one_line(&text)))?;
            }
            Item::Gap(text) => out.line(&format!("\n  !!!  GAP: {}", one_line(&text)))?,
        }
        if out.is_closed() {
            break;
        }
    }
    Ok(())
}

/// One message: its record and role, then its blocks, indented.
fn print_message(
    said: &Said,
    first: bool,
    now: Timestamp,
    out: &mut Output,
) -> Result<(), Failure> {
    let seq = match first {
        true => format!("#{}", said.seq),
        false => String::new(),
    };
    let mut head = format!("{seq:>5}  {}", said.message.role());
    if let Message::ToolResult(result) = &said.message {
        head.push_str(&format!("  {}", one_line(&result.tool_use_id)));
        if result.is_error {
            head.push_str("  (error)");
        }
    }
    if first {
        head.push_str(&format!("  {}", when(said.at, now)));
    }
    out.line(&head)?;
    said.message
        .blocks()
        .iter()
        .flat_map(block_lines)
        .try_for_each(|line| out.line(format!("         {line}").trim_end()))
}

fn block_lines(block: &Block) -> Vec<String> {
    match block {
        Block::Text { text } => text_lines("", text),
        Block::Refusal { text } => text_lines("(refuses) ", text),
        Block::Thinking(thinking) => text_lines("(thinks) ", &thinking.thinking),
        Block::ToolUse(call) => vec![format!(
            "-> {} {}  [{}]",
            one_line(&call.name),
            short(call.input.get(), INPUT_WIDTH),
            one_line(&call.id)
        )],
        Block::ToolResult(result) => {
            let inner = result.content.iter().flat_map(|block| match block {
                // Nesting is bounded by the format; a person needs one level of it.
                Block::ToolResult(_) => vec!["(a nested result)".to_owned()],
                other => block_lines(other),
            });
            let head = format!("<- {}", one_line(&result.tool_use_id));
            std::iter::once(head).chain(inner).collect()
        }
        Block::Image(image) => vec![media("image", &image.media_type, image.source.data.len())],
        Block::Audio(audio) => vec![media("audio", &audio.media_type, audio.data.len())],
        Block::Document(document) => {
            vec![media("document", &document.media_type, document.data.len())]
        }
        other => vec![format!("({})", other.tag())],
    }
}

fn media(what: &str, media_type: &str, bytes: usize) -> String {
    format!("({what} {}, {bytes} bytes)", one_line(media_type))
}

fn text_lines(mark: &str, text: &str) -> Vec<String> {
    let shown = visible(text);
    let total = shown.lines().count();
    let mut lines: Vec<String> = shown.lines().take(BLOCK_LINES).map(str::to_owned).collect();
    if let Some(first) = lines.first_mut() {
        first.insert_str(0, mark);
    } else if !mark.is_empty() {
        lines.push(mark.to_owned());
    }
    if total > BLOCK_LINES {
        let more = (total - BLOCK_LINES) as u64;
        lines.push(format!(
            "… {} (--json shows all)",
            count(more, "more line", "more lines")
        ));
    }
    lines
}
