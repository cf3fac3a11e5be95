//! Reads the files of a crate: its modules, what they define, and the paths that they name.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprLit, ForeignItem, Item, Lit, Meta, Token, UseTree, Visibility};

/// The segments of a path.
pub(crate) type Segments = Vec<String>;

/// Names a module of a crate.
pub(crate) type ModuleId = usize;

/// The crate's root module.
pub(crate) const ROOT: ModuleId = 0;

/// A module.
#[derive(Debug, Default)]
pub(crate) struct Module {
    /// Where it stands, below the directory of the crate's root.
    pub(crate) file: PathBuf,
    pub(crate) parent: Option<ModuleId>,
    pub(crate) children: HashMap<String, ModuleId>,
    /// Names that it defines; those that macros define are missing.
    pub(crate) items: HashSet<String>,
    /// Names of its macros, which descendants see without a path.
    pub(crate) macros: HashSet<String>,
    /// Names that `use` gives it, and the paths that they stand for.
    pub(crate) aliases: HashMap<String, Vec<Segments>>,
    /// Paths of which it has all names, by `use path::*`.
    pub(crate) globs: Vec<Segments>,
    pub(crate) mentions: Vec<Mention>,
}

/// A path that a module names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mention {
    pub(crate) path: Segments,
    pub(crate) how: How,
}

/// How a path is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// By an item, a statement or an expression.
    Used,
    /// By a macro's invocation.
    Invoked,
    /// By a private `use`.
    Imported,
    /// By a private `use path::*`.
    ImportedWhole,
    /// By a `use` that others see.
    ReExported,
}

/// Why a crate could not be read.
#[derive(Debug)]
pub struct Unreadable {
    file: PathBuf,
    why: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.why)
    }
}

impl std::error::Error for Unreadable {}

/// All modules of the crate whose root is `root`.
pub(crate) fn read(root: &Path) -> Result<Vec<Module>, Unreadable> {
    let base = root.parent().unwrap_or(Path::new(""));
    let mut reader = Reader { base, modules: Vec::new() };
    reader.file(root, base, None)?;
    Ok(reader.modules)
}

struct Reader<'a> {
    /// Where the root file is.
    base: &'a Path,
    modules: Vec<Module>,
}

impl Reader<'_> {
    /// Reads a file, whose modules' files are in `children`. `None`: it is for tests alone.
    fn file(
        &mut self,
        file: &Path,
        children: &Path,
        parent: Option<ModuleId>,
    ) -> Result<Option<ModuleId>, Unreadable> {
        let failed = |why: String| Unreadable { file: file.to_path_buf(), why };
        let text = std::fs::read_to_string(file).map_err(|e| failed(e.to_string()))?;
        let parsed = syn::parse_file(&text).map_err(|e| failed(e.to_string()))?;
        if is_for_tests(&parsed.attrs) {
            return Ok(None);
        }
        self.module(file, children, parent, &parsed.items).map(Some)
    }

    fn module(
        &mut self,
        file: &Path,
        children: &Path,
        parent: Option<ModuleId>,
        items: &[Item],
    ) -> Result<ModuleId, Unreadable> {
        let id = self.modules.len();
        let short = file.strip_prefix(self.base).unwrap_or(file).to_path_buf();
        self.modules.push(Module { file: short, parent, ..Module::default() });
        for item in items {
            if let Item::Mod(module) = item {
                self.child(id, file, children, module)?;
            } else {
                self.modules[id].define(item);
                Mentions(&mut self.modules[id]).visit_item(item);
            }
        }
        Ok(id)
    }

    fn child(
        &mut self,
        parent: ModuleId,
        file: &Path,
        children: &Path,
        module: &syn::ItemMod,
    ) -> Result<(), Unreadable> {
        if is_for_tests(&module.attrs) {
            return Ok(());
        }
        let name = name_of(&module.ident);
        let below = children.join(&name);
        let child = if let Some((_, items)) = &module.content {
            Some(self.module(file, &below, Some(parent), items)?)
        } else {
            let own = children.join(format!("{name}.rs"));
            let own = if own.exists() { own } else { below.join("mod.rs") };
            self.file(&own, &below, Some(parent))?
        };
        if let Some(child) = child {
            self.modules[parent].children.insert(name, child);
        }
        Ok(())
    }
}

impl Module {
    /// Notes the names that an item gives.
    fn define(&mut self, item: &Item) {
        let ident = match item {
            Item::Const(item) => &item.ident,
            Item::Enum(item) => &item.ident,
            Item::Fn(item) => &item.sig.ident,
            Item::Macro(item) => match &item.ident {
                Some(ident) => {
                    self.macros.insert(name_of(ident));
                    ident
                }
                None => return,
            },
            Item::Static(item) => &item.ident,
            Item::Struct(item) => &item.ident,
            Item::Trait(item) => &item.ident,
            Item::TraitAlias(item) => &item.ident,
            Item::Type(item) => &item.ident,
            Item::Union(item) => &item.ident,
            Item::ForeignMod(block) => {
                for item in &block.items {
                    let ident = match item {
                        ForeignItem::Fn(item) => &item.sig.ident,
                        ForeignItem::Static(item) => &item.ident,
                        ForeignItem::Type(item) => &item.ident,
                        _ => continue,
                    };
                    self.items.insert(name_of(ident));
                }
                return;
            }
            _ => return,
        };
        self.items.insert(name_of(ident));
    }

    /// Notes what a tree of a `use` names, below `prefix`.
    fn import(&mut self, prefix: &Segments, tree: &UseTree, is_for_others: bool) {
        let how = if is_for_others { How::ReExported } else { How::Imported };
        let (path, alias) = match tree {
            UseTree::Path(tree) => {
                return self.import(&joined(prefix, &tree.ident), &tree.tree, is_for_others);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(prefix, tree, is_for_others);
                }
                return;
            }
            UseTree::Glob(_) => {
                let how = if is_for_others { how } else { How::ImportedWhole };
                self.mentions.push(Mention { path: prefix.clone(), how });
                self.globs.push(prefix.clone());
                return;
            }
            // `a::{self}` is `a`.
            UseTree::Name(tree) if tree.ident == "self" => (prefix.clone(), prefix.last().cloned()),
            UseTree::Name(tree) => (joined(prefix, &tree.ident), Some(name_of(&tree.ident))),
            UseTree::Rename(tree) => {
                let is_prefix = tree.ident == "self";
                let path = if is_prefix { prefix.clone() } else { joined(prefix, &tree.ident) };
                (path, Some(name_of(&tree.rename)))
            }
        };
        if let Some(alias) = alias {
            self.aliases.entry(alias).or_default().push(path.clone());
        }
        self.mentions.push(Mention { path, how });
    }
}

fn joined(prefix: &Segments, ident: &syn::Ident) -> Segments {
    prefix.iter().cloned().chain([name_of(ident)]).collect()
}

/// Without the `r#` of a raw one.
fn name_of(ident: &syn::Ident) -> String {
    let name = ident.to_string();
    name.strip_prefix("r#").map_or(name.clone(), str::to_owned)
}

/// Gathers the paths that items name.
struct Mentions<'a>(&'a mut Module);

impl Mentions<'_> {
    fn used(&mut self, path: Segments) {
        if !path.is_empty() {
            self.0.mentions.push(Mention { path, how: How::Used });
        }
    }

    fn path(&mut self, path: &syn::Path, how: How) {
        // `::name` is another crate.
        if path.leading_colon.is_none() {
            let path = path.segments.iter().map(|segment| name_of(&segment.ident)).collect();
            self.0.mentions.push(Mention { path, how });
        }
    }
}

/// A `visit_*` for each kind of node that has attributes; it passes over nodes for tests.
macro_rules! but_for_tests {
    ($($visit:ident: $node:ident;)+) => {$(
        fn $visit(&mut self, node: &'ast syn::$node) {
            if !is_for_tests(&node.attrs) {
                visit::$visit(self, node);
            }
        }
    )+};
}

impl<'ast> Visit<'ast> for Mentions<'_> {
    but_for_tests! {
        visit_arm: Arm;
        visit_field: Field;
        visit_field_value: FieldValue;
        visit_foreign_item_fn: ForeignItemFn;
        visit_foreign_item_static: ForeignItemStatic;
        visit_impl_item_const: ImplItemConst;
        visit_impl_item_fn: ImplItemFn;
        visit_impl_item_macro: ImplItemMacro;
        visit_impl_item_type: ImplItemType;
        visit_item_const: ItemConst;
        visit_item_enum: ItemEnum;
        visit_item_fn: ItemFn;
        visit_item_foreign_mod: ItemForeignMod;
        visit_item_impl: ItemImpl;
        visit_item_macro: ItemMacro;
        visit_item_mod: ItemMod;
        visit_item_static: ItemStatic;
        visit_item_struct: ItemStruct;
        visit_item_trait: ItemTrait;
        visit_item_type: ItemType;
        visit_item_union: ItemUnion;
        visit_local: Local;
        visit_stmt_macro: StmtMacro;
        visit_trait_item_const: TraitItemConst;
        visit_trait_item_fn: TraitItemFn;
        visit_trait_item_macro: TraitItemMacro;
        visit_trait_item_type: TraitItemType;
        visit_variant: Variant;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        // `use ::name` is another crate.
        if is_for_tests(&item.attrs) || item.leading_colon.is_some() {
            return;
        }
        let is_for_others = match &item.vis {
            Visibility::Inherited => false,
            Visibility::Restricted(to) => !to.path.is_ident("self"),
            Visibility::Public(_) => true,
        };
        self.0.import(&Segments::new(), &item.tree, is_for_others);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.path(path, How::Used);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invoked: &'ast syn::Macro) {
        self.path(&invoked.path, How::Invoked);
        self.tokens(invoked.tokens.clone());
    }

    /// The path of `pub(in path)` is no import.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    /// Arguments of macros and attributes are tokens; only the macro knows their grammar.
    fn visit_token_stream(&mut self, tokens: &'ast TokenStream) {
        self.tokens(tokens.clone());
    }
}

impl Mentions<'_> {
    /// Notes all tokens that look like paths.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path = Segments::new();
        // The punctuation since the last name.
        let mut before = String::new();
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if before != "::" {
                        self.used(std::mem::take(&mut path));
                    }
                    let is_member = before.ends_with('.') && !before.ends_with("..");
                    let is_foreign = before.ends_with("::") && path.is_empty();
                    if !is_member && !is_foreign {
                        path.push(name_of(&ident));
                    }
                    before.clear();
                }
                TokenTree::Punct(punct) => before.push(punct.as_char()),
                TokenTree::Literal(_) => before.clear(),
                TokenTree::Group(group) => {
                    self.used(std::mem::take(&mut path));
                    self.tokens(group.stream());
                    before.clear();
                }
            }
        }
        self.used(path);
    }
}

/// True for `#[test]`, and for `#[cfg]` that is false without `test`.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => {
            list.parse_args().is_ok_and(|predicate| needs_test(&predicate))
        }
        _ => false,
    })
}

/// The feature that gives the simulator to fuzzers, as `test` gives it to tests: no product has it.
const TEST_FEATURE: &str = "sim";

fn needs_test(predicate: &Meta) -> bool {
    let list = match predicate {
        Meta::List(list) => list,
        Meta::NameValue(pair) => {
            let is_it = |value: &Expr| {
                matches!(value, Expr::Lit(ExprLit { lit: Lit::Str(name), .. })
                if name.value() == TEST_FEATURE)
            };
            return pair.path.is_ident("feature") && is_it(&pair.value);
        }
        Meta::Path(path) => return path.is_ident("test"),
    };
    let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
    let Ok(parts) = parts else { return false };
    match list.path.get_ident().map(ToString::to_string).as_deref() {
        Some("all") => parts.iter().any(needs_test),
        Some("any") => parts.iter().all(needs_test),
        _ => false,
    }
}
