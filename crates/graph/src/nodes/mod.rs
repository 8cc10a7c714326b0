//! The graph: nodes by name, their users, and the operations that add, change and remove nodes.
//!
//! A change of the graph holds a [`Change`], one at a time, so that no half-made change is visible under a
//! name. A look-up holds nothing. Requests do not come through here.

mod access;
#[cfg(test)]
mod access_tests;
mod active;
#[cfg(test)]
mod active_tests;
mod add;
mod at_rest;
#[cfg(test)]
mod at_rest_tests;
mod below;
#[cfg(test)]
mod below_tests;
mod by_name;
#[cfg(test)]
mod by_name_tests;
mod changing_backing;
mod children;
mod description;
mod description_error;
mod disk_node;
mod error;
mod file_to_fill;
mod filter;
mod filter_node;
#[cfg(test)]
mod future_sizes;
mod graph;
mod hold;
mod holders;
mod images_over;
mod job_filter;
mod job_host;
mod keep;
mod key_slots;
mod layer_node;
#[cfg(test)]
mod layer_node_tests;
mod list;
mod live;
mod move_files;
mod name;
mod node;
mod other_file;
#[cfg(test)]
mod other_file_tests;
mod over_nodes;
mod removal;
mod reopen;
mod reopen_backing;
mod reopen_files;
mod replace;
#[cfg(test)]
mod replace_tests;
#[cfg(test)]
mod test_world;
#[cfg(test)]
mod tests;
mod user;
mod writers;

pub use self::access::LayerAccess;
pub use self::at_rest::AtRest;
pub use self::by_name::BeforeExchange;
pub use self::changing_backing::present_image;
pub use self::children::ChildChange;
pub use self::description_error::DescriptionError;
pub use self::disk_node::DiskNode;
pub use self::error::NodeError;
pub use self::file_to_fill::FileToFill;
pub use self::filter_node::FilterNode;
use self::graph::Nodes;
pub use self::graph::{Change, Graph};
pub use self::holders::Hold;
pub use self::job_filter::JobFilter;
pub use self::job_host::{CommitError, JobHost, JobOwner, StepError, tracking_unit};
pub use self::key_slots::KeySlots;
pub use self::live::{LayerView, Overlay};
pub use self::name::{MadeNames, NodeName};
pub use self::node::{Node, NodeKind};
pub use self::removal::{Ends, Removed};
pub use self::replace::{Edge, Put, PutOver, ReplaceError, Replaced, Under};
pub use self::user::User;
