//! Finds the definitions of the names that a module mentions.

use crate::source::{How, Mention, Module, ModuleId, ROOT, Segments};

/// What a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target<'a> {
    /// A module.
    Module(ModuleId),
    /// What a module calls so.
    ItemOf(ModuleId, &'a str),
    /// Something of another crate.
    Foreign,
}

/// Most `use` that are followed for one name: it can lead to itself.
const LONGEST: usize = 32;

/// Resolves a mention in `from`: the module that defines what is named (possibly `from` itself),
/// and its name there. `None`: nothing is imported from this crate.
pub(crate) fn imported<'a>(
    modules: &'a [Module],
    from: ModuleId,
    Mention { path, how }: &'a Mention,
) -> Option<(ModuleId, &'a str)> {
    let Some(target) = resolve(modules, from, path, 0) else {
        return if *how == How::Invoked { in_scope(modules, from, path) } else { None };
    };
    match (target, how) {
        (Target::ItemOf(to, _), How::ReExported) if is_below(modules, to, from) => None,
        (Target::ItemOf(to, name), _) => Some((to, name)),
        (Target::Module(to), How::ImportedWhole) => Some((to, "*")),
        // The import is in the paths that begin with the module's name.
        (Target::Module(_) | Target::Foreign, _) => None,
    }
}

/// A macro that a module sees without a path, as an ancestor defines it.
fn in_scope<'a>(
    modules: &'a [Module],
    from: ModuleId,
    path: &'a Segments,
) -> Option<(ModuleId, &'a str)> {
    let [name] = path.as_slice() else { return None };
    let above = ancestors(modules, from).find(|id| modules[*id].macros.contains(name))?;
    Some((above, name))
}

fn is_below(modules: &[Module], module: ModuleId, above: ModuleId) -> bool {
    ancestors(modules, module).any(|id| id == above)
}

fn ancestors(modules: &[Module], of: ModuleId) -> impl Iterator<Item = ModuleId> {
    std::iter::successors(modules[of].parent, |id| modules[*id].parent)
}

/// Follows a path from a module. `None`: its first name is none of this module's, but another
/// crate, a variable, a type parameter or a name of the prelude.
fn resolve<'a>(
    modules: &'a [Module],
    from: ModuleId,
    path: &'a Segments,
    steps: usize,
) -> Option<Target<'a>> {
    let mut rest = path.iter().map(String::as_str).peekable();
    let mut at = match rest.next()? {
        "crate" => Target::Module(ROOT),
        "self" => Target::Module(from),
        "super" => Target::Module(modules[from].parent?),
        name => look_up(modules, from, name, rest.peek().is_some(), steps)?,
    };
    while let (Target::Module(module), Some(name)) = (at, rest.next()) {
        at = match name {
            "super" => Target::Module(modules[module].parent?),
            // A macro defines what is not found.
            name => look_up(modules, module, name, rest.peek().is_some(), steps)
                .unwrap_or(Target::ItemOf(module, name)),
        };
    }
    Some(at)
}

/// What `name` is in a module. A child and an item may share it; a path goes on from the child.
fn look_up<'a>(
    modules: &'a [Module],
    module: ModuleId,
    name: &'a str,
    goes_on: bool,
    steps: usize,
) -> Option<Target<'a>> {
    if steps > LONGEST {
        return None;
    }
    let known = &modules[module];
    let item = known.items.contains(name).then_some(Target::ItemOf(module, name));
    let child = known.children.get(name).map(|child| Target::Module(*child));
    let alias = || {
        let paths = known.aliases.get(name)?;
        // A path that does not resolve leads to another crate.
        let targets = paths
            .iter()
            .map(|path| resolve(modules, module, path, steps + 1).unwrap_or(Target::Foreign));
        targets.reduce(|one, other| if one == Target::Foreign { other } else { one })
    };
    // An item beside a module or an alias of its name is a function or a constant, which no path goes through.
    let own = if goes_on { child.or_else(alias).or(item) } else { item.or(child).or_else(alias) };
    own.or_else(|| {
        known.globs.iter().find_map(|path| match resolve(modules, module, path, steps + 1)? {
            Target::Module(whole) if whole != module => {
                look_up(modules, whole, name, goes_on, steps + 1)
            }
            _ => None,
        })
    })
}
