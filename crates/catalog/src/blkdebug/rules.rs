//! Which request fails, and when: rules, the state they go through, and breakpoints. Pure: nothing waits here.

use std::ops::Range;

use storage::Step;

/// The state of rules when the storage is opened, as in QEMU. 0 stands for any.
pub const FIRST_STATE: u32 = 1;

/// What a request does. Each rule is for some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoType {
    /// Bytes are read.
    Read,
    /// Bytes are written.
    Write,
    /// A range is zeroed.
    WriteZeroes,
    /// A range is given up.
    Discard,
    /// What was written is made durable.
    Flush,
    /// It is asked what is data.
    BlockStatus,
}

impl IoType {
    /// All, by name.
    pub const NAMED: [(&str, IoType); 6] = [
        ("read", IoType::Read),
        ("write", IoType::Write),
        ("write-zeroes", IoType::WriteZeroes),
        ("discard", IoType::Discard),
        ("flush", IoType::Flush),
        ("block-status", IoType::BlockStatus),
    ];
}

/// What is done at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// At which one.
    pub event: Step,
    /// In which state; 0: in any.
    pub state: u32,
    /// What.
    pub action: Action,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Requests fail from then on, until another rule of this kind is met.
    Inject(Inject),
    /// The state becomes this one.
    SetState(u32),
}

/// Which requests fail, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inject {
    /// The system's number of the error; 0: they do not fail.
    pub errno: u32,
    /// Only those that touch this byte.
    pub offset: Option<u64>,
    /// Only those of this type; otherwise all that move or settle bytes.
    pub io_type: Option<IoType>,
    /// The rule holds for one request.
    pub once: bool,
    /// The error comes at once, before anything else on the loop.
    pub immediately: bool,
    /// Nanoseconds for which a request waits first.
    pub delay_ns: u64,
}

/// The rules at work.
#[derive(Debug)]
pub struct Rules {
    rules: Vec<Rule>,
    state: u32,
    /// What makes requests fail now.
    active: Vec<Inject>,
    breakpoints: Vec<(Step, String)>,
    /// Tags for the requests that come next, the first one last.
    holding: Vec<String>,
}

impl Rules {
    /// At work from the first state on.
    pub fn new(rules: Vec<Rule>) -> Self {
        let (active, breakpoints, holding) = (Vec::new(), Vec::new(), Vec::new());
        let mut rules = Self { rules, state: FIRST_STATE, active, breakpoints, holding };
        rules.about_to(Step::None);
        rules
    }

    /// Does what is to be done at `step`.
    pub fn about_to(&mut self, step: Step) {
        let state = self.state;
        let met = self.rules.iter().filter(|rule| rule.event == step && [0, state].contains(&rule.state));
        let mut injected = Vec::new();
        for rule in met {
            match rule.action {
                Action::Inject(inject) => injected.push(inject),
                Action::SetState(state) => self.state = state,
            }
        }
        if !injected.is_empty() {
            self.active = injected;
        }
        let mut place = 0;
        while place < self.breakpoints.len() {
            match self.breakpoints.get(place) {
                Some((at, _)) if *at == step => {
                    let (_, tag) = self.breakpoints.remove(place);
                    self.holding.insert(0, tag);
                }
                _ => place += 1,
            }
        }
    }

    /// What the request that begins now is held back as, if it is.
    pub fn hold_back(&mut self) -> Option<String> {
        self.holding.pop()
    }

    /// How a request fails or is delayed, if it is. `range` is empty for a flush.
    pub fn failure(&mut self, io_type: IoType, range: Range<u64>) -> Option<Inject> {
        let fits = |inject: &Inject| {
            let is_type = inject.io_type.map_or(io_type != IoType::BlockStatus, |only| only == io_type);
            is_type && inject.offset.is_none_or(|offset| range.contains(&offset))
        };
        let place = self.active.iter().position(fits)?;
        let found = *self.active.get(place)?;
        if found.once {
            self.active.remove(place);
            let spent = self.rules.iter().position(|rule| rule.action == Action::Inject(found));
            spent.map(|rule| self.rules.remove(rule));
        }
        (found.errno != 0 || found.delay_ns != 0).then_some(found)
    }

    /// Holds back the next request after `step`.
    pub fn set_breakpoint(&mut self, step: Step, tag: &str) {
        self.breakpoints.push((step, tag.to_owned()));
    }

    /// Forgets breakpoints called `tag`; whether there were any.
    pub fn remove_breakpoint(&mut self, tag: &str) -> bool {
        let before = self.breakpoints.len() + self.holding.len();
        self.breakpoints.retain(|(_, known)| known != tag);
        self.holding.retain(|known| known != tag);
        self.breakpoints.len() + self.holding.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Inject =
        Inject { errno: 5, offset: None, io_type: None, once: false, immediately: false, delay_ns: 0 };

    fn inject(event: Step, state: u32, inject: Inject) -> Rule {
        Rule { event, state, action: Action::Inject(inject) }
    }

    fn errno(rules: &mut Rules, io_type: IoType, range: Range<u64>) -> Option<u32> {
        rules.failure(io_type, range).map(|found| found.errno)
    }

    #[test]
    fn requests_fail_from_their_step_on_and_once_only_if_that_was_said() {
        let mut rules = Rules::new(vec![inject(Step::WriteAio, 0, ANY)]);
        assert_eq!(errno(&mut rules, IoType::Write, 0..512), None);
        rules.about_to(Step::WriteAio);
        for io_type in [IoType::Write, IoType::Read, IoType::Flush, IoType::Discard, IoType::WriteZeroes] {
            assert_eq!(errno(&mut rules, io_type, 0..0), Some(5), "{io_type:?}");
        }
        assert_eq!(errno(&mut rules, IoType::BlockStatus, 0..512), None);
        let once = Inject { once: true, errno: 28, ..ANY };
        let mut rules = Rules::new(vec![inject(Step::WriteAio, 0, once)]);
        rules.about_to(Step::WriteAio);
        assert_eq!(errno(&mut rules, IoType::Write, 0..512), Some(28));
        rules.about_to(Step::WriteAio);
        assert_eq!(errno(&mut rules, IoType::Write, 0..512), None);
    }

    #[test]
    fn a_request_is_delayed_also_where_it_does_not_fail() {
        let delayed = Inject { errno: 0, delay_ns: 7, ..ANY };
        let mut rules = Rules::new(vec![inject(Step::None, 0, delayed)]);
        assert_eq!(rules.failure(IoType::Read, 0..512), Some(delayed));
        let mut rules = Rules::new(vec![inject(Step::None, 0, Inject { delay_ns: 0, ..delayed })]);
        assert_eq!(rules.failure(IoType::Read, 0..512), None);
    }

    #[test]
    fn a_rule_is_for_its_byte_and_its_type() {
        let one = Inject { offset: Some(512), io_type: Some(IoType::Read), ..ANY };
        let mut rules = Rules::new(vec![inject(Step::None, 0, one)]);
        assert_eq!(errno(&mut rules, IoType::Read, 0..512), None);
        assert_eq!(errno(&mut rules, IoType::Read, 0..513), Some(5));
        assert_eq!(errno(&mut rules, IoType::Write, 0..513), None);
        assert_eq!(errno(&mut rules, IoType::Read, 512..512), None);
    }

    #[test]
    fn rules_wait_for_their_state() {
        let set = |event, state, new| Rule { event, state, action: Action::SetState(new) };
        let second = Inject { errno: 0, ..ANY };
        let mut rules = Rules::new(vec![
            set(Step::L2Load, 1, 2),
            inject(Step::L2Load, 2, ANY),
            inject(Step::L1Update, 2, second),
        ]);
        rules.about_to(Step::L2Load);
        assert_eq!(errno(&mut rules, IoType::Read, 0..1), None);
        rules.about_to(Step::L2Load);
        assert_eq!(errno(&mut rules, IoType::Read, 0..1), Some(5));
        // Another rule of this kind ends what the first one did.
        rules.about_to(Step::L1Update);
        assert_eq!(errno(&mut rules, IoType::Read, 0..1), None);
    }

    #[test]
    fn a_breakpoint_holds_back_one_request() {
        let mut rules = Rules::new(Vec::new());
        rules.set_breakpoint(Step::WriteAio, "A");
        rules.set_breakpoint(Step::L2Load, "B");
        assert_eq!(rules.hold_back(), None);
        rules.about_to(Step::WriteAio);
        assert_eq!(rules.hold_back().as_deref(), Some("A"));
        rules.about_to(Step::WriteAio);
        assert_eq!(rules.hold_back(), None);
        assert!(rules.remove_breakpoint("B") && !rules.remove_breakpoint("B"));
        rules.about_to(Step::L2Load);
        assert_eq!(rules.hold_back(), None);
    }
}
