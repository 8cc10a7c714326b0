//! Objects that say which clients of an NBD server are admitted, by the name of their certificate: `authz-simple`, `authz-list`, `authz-listfile`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use control::{QmpError, Takes, arguments, choice, taken};
use net::tls::Authorization;
use parking_lot::Mutex;
use serde_json::Value;

/// A file of rules that is larger is something else. 64 KiB are a thousand names.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Rules of one object at most.
const RULES_MAX: usize = 4096;

arguments! {
    /// Of authz-simple.
    pub struct NewSimple { identity: String }

    /// Of authz-list, and of a file.
    #[derive(Default)]
    pub struct NewList { policy: Option<Policy>, rules: Option<Vec<NewRule>> }

    /// A rule of a list.
    pub struct NewRule { r#match: String, policy: Policy, format: Option<Pattern> }

    /// Of authz-listfile.
    pub struct NewListFile { filename: String, refresh: Option<bool> }
}

choice! {
    /// Whether a client is admitted.
    pub enum Policy { Deny, Allow }

    /// Whether `*` and `?` stand for others.
    pub enum Pattern { Exact, Glob }
}

/// The rules of one object.
#[derive(Debug)]
pub enum Rules {
    /// One name.
    Simple(String),
    /// A list of rules.
    List(List),
    /// A list in a file.
    ListFile {
        /// The file.
        path: PathBuf,
        /// What it held when the object was made, where it is not read at each connection.
        list: Option<List>,
    },
}

/// Rules, of which the first that fits decides.
#[derive(Debug, Default)]
pub struct List {
    rules: Vec<Rule>,
    /// Whether a name that none fits is admitted.
    otherwise: bool,
}

#[derive(Debug)]
struct Rule {
    pattern: String,
    is_glob: bool,
    admits: bool,
}

impl Rules {
    /// Those of an authz-listfile.
    ///
    /// # Errors
    /// When there are too many, or the file cannot be read.
    pub fn of_file(given: &NewListFile) -> Result<Self, QmpError> {
        let path = PathBuf::from(&given.filename);
        let list = List::read(&path)?;
        let is_read_again = given.refresh.unwrap_or(true);
        Ok(Self::ListFile { path, list: (!is_read_again).then_some(list) })
    }

    /// The object's type.
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::Simple(_) => "authz-simple",
            Self::List(_) => "authz-list",
            Self::ListFile { .. } => "authz-list-file",
        }
    }

    /// Whether a client with a certificate for `name` is admitted. A file that cannot be read any more admits none.
    fn admit(&self, name: &str) -> bool {
        match self {
            Self::Simple(identity) => identity == name,
            Self::List(list) | Self::ListFile { list: Some(list), .. } => list.admits(name),
            Self::ListFile { path, list: None } => match List::read(path) {
                Ok(list) => list.admits(name),
                Err(error) => {
                    tracing::warn!(%error, "a client is refused");
                    false
                }
            },
        }
    }
}

impl List {
    /// # Errors
    /// When there are too many rules.
    pub fn of(given: &NewList) -> Result<Self, QmpError> {
        let rules = given.rules.as_deref().unwrap_or_default();
        if rules.len() > RULES_MAX {
            return Err(QmpError::generic(format!(
                "argument 'rules' has {} members; allowed: {RULES_MAX}",
                rules.len()
            )));
        }
        let rule = |rule: &NewRule| Rule {
            pattern: rule.r#match.clone(),
            is_glob: rule.format == Some(Pattern::Glob),
            admits: rule.policy == Policy::Allow,
        };
        Ok(Self { rules: rules.iter().map(rule).collect(), otherwise: given.policy == Some(Policy::Allow) })
    }

    /// Those of a file: a JSON object with `policy` and `rules`.
    fn read(path: &Path) -> Result<Self, QmpError> {
        let failed = |why: String| QmpError::generic(format!("the rules of {}: {why}", path.display()));
        let text = read(path)
            .map_err(|error| QmpError::because(format!("the rules of {}", path.display()), &error))?;
        let value: Value = serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
        let object = value.as_object().ok_or_else(|| failed("it holds no JSON object".to_owned()))?;
        NewList::KIND.check_members(object, "").map_err(|error| failed(error.desc))?;
        Self::of(&taken(object)?)
    }

    fn admits(&self, name: &str) -> bool {
        let found = self.rules.iter().find(|rule| rule.fits(name));
        found.map_or(self.otherwise, |rule| rule.admits)
    }
}

impl Rule {
    fn fits(&self, name: &str) -> bool {
        match self.is_glob {
            true => fits(self.pattern.as_bytes(), name.as_bytes()),
            false => self.pattern == name,
        }
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let count = File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    match count as u64 > FILE_BYTES_MAX {
        true => Err(io::Error::other(format!("it has more than {FILE_BYTES_MAX} bytes"))),
        false => Ok(text),
    }
}

/// Whether `name` is what `pattern` describes: `*` stands for any bytes, `?` for one. Takes time in proportion to both lengths multiplied, at most.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut in_name, mut star) = (0, 0, None);
    while in_name < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, in_name));
                at += 1;
            }
            Some(byte) if *byte == b'?' || Some(byte) == name.get(in_name) => {
                (at, in_name) = (at + 1, in_name + 1)
            }
            _ => {
                let Some((place, from)) = star else { return false };
                (at, in_name) = (place + 1, from + 1);
                star = Some((place, from + 1));
            }
        }
    }
    pattern.iter().skip(at).all(|byte| *byte == b'*')
}

/// The rules of all such objects by their ids, for the loops that serve clients. A client whose rules are gone is refused.
#[derive(Clone, Debug, Default)]
pub struct Authorizations(Arc<Mutex<BTreeMap<String, Arc<Rules>>>>);

impl Authorizations {
    /// Adds those of the object `id`.
    pub fn add(&self, id: &str, rules: Arc<Rules>) {
        self.0.lock().insert(id.to_owned(), rules);
    }

    /// Removes those of the object `id`, if there are any.
    pub fn remove(&self, id: &str) {
        self.0.lock().remove(id);
    }

    /// What admits clients by the rules that the object `id` has when they come, as in QEMU.
    pub fn by(&self, id: &str) -> Authorization {
        let (all, id) = (self.clone(), id.to_owned());
        Authorization::new(move |name| {
            let rules = all.0.lock().get(&id).cloned();
            rules.is_some_and(|rules| rules.admit(name))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn list(arguments: &Value) -> Rules {
        Rules::List(List::of(&taken(arguments.as_object().unwrap()).unwrap()).unwrap())
    }

    fn list_file(arguments: &Value) -> Rules {
        Rules::of_file(&taken(arguments.as_object().unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn the_first_rule_that_fits_decides_and_the_policy_otherwise() {
        let rules = json!({ "policy": "allow", "rules": [
            { "match": "CN=a", "policy": "deny" },
            { "match": "CN=a*,O=?", "policy": "deny", "format": "glob" },
            { "match": "CN=*", "policy": "allow", "format": "exact" },
        ] });
        let list = super::tests::list(&rules);
        for (name, admitted) in [("CN=a", false), ("CN=ab,O=x", false), ("CN=ab,O=xy", true), ("CN=*", true)]
        {
            assert_eq!(list.admit(name), admitted, "{name}");
        }
        assert!(!super::tests::list(&json!({})).admit("CN=a"));
        let simple = Rules::Simple("CN=a".to_owned());
        assert!(simple.admit("CN=a") && !simple.admit("CN=b"));
    }

    #[test]
    fn rules_of_a_file_are_those_that_it_holds_when_a_client_comes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rules");
        let write = |policy: &str| std::fs::write(&path, json!({ "policy": policy }).to_string()).unwrap();
        write("deny");
        let arguments = |refresh: bool| json!({ "filename": path.to_str().unwrap(), "refresh": refresh });
        let (fresh, first) = (list_file(&arguments(true)), list_file(&arguments(false)));
        write("allow");
        assert!(fresh.admit("CN=a") && !first.admit("CN=a"));
        std::fs::write(&path, "no JSON").unwrap();
        assert!(!fresh.admit("CN=a"));
    }

    #[test]
    fn clients_are_refused_when_the_rules_are_gone() {
        let all = Authorizations::default();
        let authorization = all.by("z");
        assert!(!authorization.admits("CN=a"));
        all.add("z", Arc::new(Rules::Simple("CN=a".to_owned())));
        assert!(authorization.admits("CN=a") && !authorization.admits("CN=b"));
        all.remove("z");
        assert!(!authorization.admits("CN=a"));
    }

    #[test]
    fn a_star_stands_for_any_bytes_and_costs_no_more_than_the_lengths() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "a1c2b", false),
            ("?", "", false),
            ("a?", "ab", true),
            ("", "a", false),
        ] {
            assert_eq!(fits(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
        assert!(!fits("a*".repeat(2000).as_bytes(), "a".repeat(1000).as_bytes()));
    }
}
