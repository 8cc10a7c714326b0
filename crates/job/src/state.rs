//! The states of a job, and what each lets happen: QEMU's, as clients rely on them.

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Not made yet.
    Undefined,
    /// Made, not begun.
    Created,
    /// At work.
    Running,
    /// At rest, because a user asked for it or a request failed.
    Paused,
    /// In step with its source; it goes on until it is completed or cancelled.
    Ready,
    /// [`Status::Ready`], at rest.
    Standby,
    /// Its work is done; others of its transaction are still at work.
    Waiting,
    /// Everything is done but the last step, which a user has to ask for.
    Pending,
    /// It failed or was cancelled, and cleans up.
    Aborting,
    /// It has ended; what became of it can still be asked.
    Concluded,
    /// Forgotten.
    Null,
}

/// What can be asked of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// End it.
    Cancel,
    /// Rest.
    Pause,
    /// Go on.
    Resume,
    /// Change its limit.
    SetSpeed,
    /// Do the last step of one that is ready.
    Complete,
    /// Do the last step of one that is pending.
    Finalize,
    /// Forget one that has ended.
    Dismiss,
    /// Change its options.
    Change,
}

impl Status {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Undefined,
        Self::Created,
        Self::Running,
        Self::Paused,
        Self::Ready,
        Self::Standby,
        Self::Waiting,
        Self::Pending,
        Self::Aborting,
        Self::Concluded,
        Self::Null,
    ];

    /// Its name in QMP.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Undefined => "undefined",
            Self::Created => "created",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Ready => "ready",
            Self::Standby => "standby",
            Self::Waiting => "waiting",
            Self::Pending => "pending",
            Self::Aborting => "aborting",
            Self::Concluded => "concluded",
            Self::Null => "null",
        }
    }

    /// Whether a job may go from here to `next`.
    pub const fn leads_to(self, next: Self) -> bool {
        match self {
            Self::Undefined => matches!(next, Self::Created),
            Self::Created => matches!(next, Self::Running | Self::Aborting | Self::Null),
            Self::Running => matches!(next, Self::Paused | Self::Ready | Self::Waiting | Self::Aborting),
            Self::Paused => matches!(next, Self::Running),
            Self::Ready => matches!(next, Self::Standby | Self::Waiting | Self::Aborting),
            Self::Standby => matches!(next, Self::Ready),
            Self::Waiting => matches!(next, Self::Pending | Self::Aborting),
            Self::Pending | Self::Aborting => matches!(next, Self::Aborting | Self::Concluded),
            Self::Concluded => matches!(next, Self::Null),
            Self::Null => false,
        }
    }

    /// Whether a job that is here takes `verb`.
    pub const fn takes(self, verb: Verb) -> bool {
        match verb {
            Verb::Cancel => matches!(
                self,
                Self::Created
                    | Self::Running
                    | Self::Paused
                    | Self::Ready
                    | Self::Standby
                    | Self::Waiting
                    | Self::Pending
            ),
            Verb::Pause | Verb::Resume | Verb::SetSpeed | Verb::Change => {
                matches!(self, Self::Created | Self::Running | Self::Paused | Self::Ready | Self::Standby)
            }
            // One that rests completes when it is resumed.
            Verb::Complete => matches!(self, Self::Ready | Self::Standby),
            Verb::Finalize => matches!(self, Self::Pending),
            Verb::Dismiss => matches!(self, Self::Concluded),
        }
    }
}

impl Verb {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Cancel,
        Self::Pause,
        Self::Resume,
        Self::SetSpeed,
        Self::Complete,
        Self::Finalize,
        Self::Dismiss,
        Self::Change,
    ];

    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::SetSpeed => "set-speed",
            Self::Complete => "complete",
            Self::Finalize => "finalize",
            Self::Dismiss => "dismiss",
            Self::Change => "change",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows and columns in the order of `ALL`: undefined, created, running, paused, ready, standby, waiting, pending, aborting,
    /// concluded, null. Written down from the published tables a second time.
    #[test]
    fn a_verb_is_taken_where_the_table_says_so() {
        let table = [
            (Verb::Cancel, "01111111000"),
            (Verb::Pause, "01111100000"),
            (Verb::Resume, "01111100000"),
            (Verb::SetSpeed, "01111100000"),
            (Verb::Complete, "00001100000"),
            (Verb::Finalize, "00000001000"),
            (Verb::Dismiss, "00000000010"),
            (Verb::Change, "01111100000"),
        ];
        assert_eq!(table.map(|(verb, _)| verb), Verb::ALL);
        for (verb, row) in table {
            let taken = Status::ALL.map(|status| if status.takes(verb) { '1' } else { '0' });
            assert_eq!(String::from_iter(taken), row, "{}", verb.name());
        }
    }

    #[test]
    fn a_state_leads_where_the_table_says_so() {
        let table = [
            "01000000000",
            "00100000101",
            "00011010100",
            "00100000000",
            "00000110100",
            "00001000000",
            "00000001100",
            "00000000110",
            "00000000110",
            "00000000001",
            "00000000000",
        ];
        for (status, row) in Status::ALL.into_iter().zip(table) {
            let next = Status::ALL.map(|next| if status.leads_to(next) { '1' } else { '0' });
            assert_eq!(String::from_iter(next), row, "{}", status.name());
        }
    }

    #[test]
    fn every_life_can_end() {
        for status in Status::ALL {
            let mut reached = vec![status];
            for _ in Status::ALL {
                let more: Vec<_> = Status::ALL
                    .into_iter()
                    .filter(|next| reached.iter().any(|from| from.leads_to(*next)))
                    .collect();
                reached.extend(more);
            }
            assert!(reached.contains(&Status::Null), "{}", status.name());
        }
    }
}
