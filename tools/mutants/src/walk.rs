//! Finds the mutation points of a file in its syntax tree.

use crate::points::{Found, Kind, Point};
use crate::rules::{self, EMPTY_IN, FENCES, LOCKS, ORDERS, RANKS, RETIRES, Rules, TELLING};
use anyhow::{Result, anyhow};
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Attribute, BinOp, Block, Expr, ExprBinary, ExprCall, ExprIf, ExprMethodCall, ExprPath, ExprTry,
    Signature, Stmt,
};

/// Rewrites a file so that each point asks whether it is the mutant; adds the points to `points`.
///
/// # Errors
/// It is not Rust, or what a mutant made by hand replaces has gone.
pub fn rewrite(file: &str, source: &str, points: &mut Vec<Point>) -> Result<String> {
    let tree = syn::parse_file(source).map_err(|why| anyhow!("{file}: {why}"))?;
    let own = file.starts_with("crates/ksync/");
    let path = if own { "crate" } else { "ksync" };
    let mut found = Found::new(file, source, points);
    found.hand(path).map_err(|why| anyhow!("{file}: {why}"))?;
    let mut walk = Walk {
        found,
        path,
        rules: rules::of(file),
        function: String::new(),
        busy_from: None,
        in_guard: false,
    };
    walk.visit_file(&tree);
    Ok(walk.found.text())
}

struct Walk<'a> {
    found: Found<'a>,
    /// How the file names `ksync`.
    path: &'static str,
    /// What is a point in it.
    rules: &'static Rules,
    /// The one that is being read.
    function: String,
    /// Where in the function a page's busy state is taken first.
    busy_from: Option<usize>,
    /// Inside of a condition that is a point as a whole.
    in_guard: bool,
}

fn part(node: &impl Spanned) -> Range<usize> {
    node.span().byte_range()
}

/// Whether an item is not of the program itself: tests, and what is not built by default.
fn is_left_out(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = attribute
            .meta
            .require_list()
            .map(|list| list.tokens.to_string())
            .unwrap_or_default();
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && (text.starts_with("test")
                    || text.starts_with("all (test")
                    || text.starts_with("feature"))
    })
}

/// Whether a block leaves what it stands in: the function, the loop or its turn.
fn leaves(block: &Block) -> bool {
    let Some(Stmt::Expr(last, _)) = block.stmts.last() else {
        return false;
    };
    match last {
        Expr::Return(_) | Expr::Break(_) | Expr::Continue(_) => true,
        // `Err(..)?`
        Expr::Try(attempt) => {
            matches!(&*attempt.expr, Expr::Call(call) if called(call).is_some_and(|name| name == "Err"))
        }
        _ => false,
    }
}

/// The conditions each of which makes `condition` true; of conditions that must hold together, one.
fn alternatives<'a>(condition: &'a Expr, all: &mut Vec<&'a Expr>) {
    match condition {
        Expr::Binary(binary) if matches!(binary.op, BinOp::Or(_)) => {
            alternatives(&binary.left, all);
            alternatives(&binary.right, all);
        }
        // `a && let b = c` is no expression of its own.
        Expr::Binary(binary) if matches!(binary.op, BinOp::And(_)) && has_let(condition) => {
            let sides = [&*binary.right, &*binary.left];
            if let Some(side) = sides.into_iter().find(|side| !has_let(side)) {
                all.push(side);
            } else {
                alternatives(&binary.left, all);
            }
        }
        Expr::Let(_) => {}
        _ => all.push(condition),
    }
}

fn has_let(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(binary) if matches!(binary.op, BinOp::And(_)) => {
            has_let(&binary.left) || has_let(&binary.right)
        }
        _ => false,
    }
}

fn called(call: &ExprCall) -> Option<String> {
    let Expr::Path(path) = &*call.func else {
        return None;
    };
    Some(path.path.segments.last()?.ident.to_string())
}

/// What follows the last dot of `a.b.c` or `a.b.c(..)`, or the one name.
fn names(expr: &Expr, all: &mut Vec<String>) {
    match expr {
        Expr::Field(field) => {
            if let syn::Member::Named(name) = &field.member {
                all.push(name.to_string());
            }
        }
        Expr::MethodCall(call) => {
            all.push(call.method.to_string());
            if matches!(call.method.to_string().as_str(), "load" | "get" | "map_or") {
                names(&call.receiver, all);
            }
        }
        Expr::Path(path) => all.extend(path.path.segments.last().map(|s| s.ident.to_string())),
        Expr::Unary(inner) => names(&inner.expr, all),
        Expr::Paren(inner) => names(&inner.expr, all),
        Expr::Binary(inner) => {
            names(&inner.left, all);
            names(&inner.right, all);
        }
        _ => {}
    }
}

impl Walk<'_> {
    fn point(&mut self, kind: Kind, at: usize) -> usize {
        let function = self.function.clone();
        self.found.point(kind, &function, at)
    }

    fn is_hand(&self, range: &Range<usize>) -> bool {
        self.found.is_hand(range.start)
    }

    /// Puts `.method(id)` before the dot of a call.
    fn before_dot(&mut self, call: &ExprMethodCall, kind: Kind, method: &str) {
        let id = self.point(kind, part(&call.method).start);
        let dot = part(&call.dot_token).start;
        self.found.put(dot, &format!(".{method}({id})"));
    }

    /// Leaves a statement out.
    fn guard(&mut self, statement: &Stmt, kind: Kind) {
        let range = part(statement);
        let id = self.point(kind, range.start);
        let open = format!("if !{}::mutant::is({id}) {{ ", self.path);
        self.found.around(&range, &open, " }");
    }

    /// Gives an expression a value.
    fn force(&mut self, range: &Range<usize>, kind: Kind, at: usize, value: bool) {
        let id = self.point(kind, at);
        self.found
            .around(range, "(", &format!(").forced({id}, {value})"));
    }

    /// Whether `finish` ends a gather here, rather than something else.
    fn finishes_flushes(&self, call: &ExprMethodCall) -> bool {
        !self.rules.flushes.is_empty() && self.path == "ksync" && call.args.len() == 1
    }

    /// Gives a call a value if its name is in the table.
    fn check(&mut self, range: &Range<usize>, table: &[(&str, bool)], name: &str, at: usize) {
        let file = &self.found.file;
        let is_list = name == "is_empty" && !EMPTY_IN.iter().any(|part| file.contains(part));
        let is_none = is_list || file.ends_with(RANKS) || self.in_guard;
        if let Some((_, value)) = table.iter().find(|(check, _)| *check == name && !is_none) {
            self.force(range, Kind::Check, at, *value);
        }
    }

    /// Reads a function, unless it is evaluated when it is compiled.
    fn function(
        &mut self,
        signature: &Signature,
        attributes: &[Attribute],
        read: impl FnOnce(&mut Self),
    ) {
        let name = signature.ident.to_string();
        if is_left_out(attributes) || signature.constness.is_some() || TELLING.contains(&&*name) {
            return;
        }
        let outer = std::mem::replace(&mut self.function, name);
        let busy = self.busy_from.take();
        read(self);
        self.function = outer;
        self.busy_from = busy;
    }

    fn statement_kind(&self, expr: &Expr) -> Option<Kind> {
        match expr {
            Expr::Call(call) => {
                let name = called(call)?;
                if FENCES.contains(&&*name) {
                    Some(Kind::Fence)
                } else if self.rules.flushes.contains(&&*name) {
                    Some(Kind::Flush)
                } else if self.rules.wakes.contains(&&*name) {
                    Some(Kind::Wake)
                } else if name == "wake" && self.found.file.ends_with("busy.rs") {
                    Some(Kind::Busy)
                } else {
                    None
                }
            }
            Expr::MethodCall(call) => {
                let name = call.method.to_string();
                if self.rules.records.contains(&&*name) {
                    Some(Kind::Record)
                } else if self.rules.states.contains(&&*name) {
                    Some(Kind::State)
                } else if self.rules.wakes.contains(&&*name) {
                    Some(Kind::Wake)
                } else if self.rules.frees.contains(&&*name) && !call.args.is_empty() {
                    Some(Kind::Grace)
                } else {
                    None
                }
            }
            _ => None,
        }
    }
}

impl<'ast> Visit<'ast> for Walk<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_left_out(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_left_out(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.attrs, |walk| {
            visit::visit_item_fn(walk, item)
        });
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.attrs, |walk| {
            visit::visit_impl_item_fn(walk, item);
        });
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.function(&item.sig, &item.attrs, |walk| {
            visit::visit_trait_item_fn(walk, item);
        });
    }

    // Evaluated when they are compiled.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}

    fn visit_expr(&mut self, expr: &'ast Expr) {
        if !self.is_hand(&part(expr)) {
            visit::visit_expr(self, expr);
        }
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        if let Stmt::Expr(expr, Some(_)) = statement
            && let Some(kind) = self.statement_kind(expr)
            && !self.is_hand(&part(statement))
        {
            self.guard(statement, kind);
        }
        visit::visit_stmt(self, statement);
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let (name, range) = (call.method.to_string(), part(call));
        if LOCKS.contains(&&*name) && call.args.is_empty() {
            self.before_dot(call, Kind::Lock, "holding_nothing");
        } else if name == "finish" && self.finishes_flushes(call) {
            self.before_dot(call, Kind::Flush, "flushing_nothing");
        } else if RETIRES.contains(&&*name) {
            self.before_dot(call, Kind::Grace, "without_grace");
        } else {
            self.check(&range, self.rules.checks, &name, part(&call.method).start);
        }
        if matches!(&*name, "try_hard_busy" | "try_soft_busy" | "busy_page") {
            self.busy_from.get_or_insert(range.end);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        let name = called(call).unwrap_or_default();
        if FENCES.contains(&&*name) {
            // Their orderings are theirs.
            return;
        }
        let range = part(call);
        self.check(&range, self.rules.asked, &name, range.start);
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_binary(&mut self, binary: &'ast ExprBinary) {
        let value = match binary.op {
            BinOp::Eq(_) | BinOp::Le(_) | BinOp::Ge(_) => Some(true),
            BinOp::Ne(_) | BinOp::Lt(_) | BinOp::Gt(_) => Some(false),
            _ => None,
        };
        let range = part(binary);
        if let Some(value) = value.filter(|_| !self.in_guard) {
            let mut all = Vec::new();
            names(&binary.left, &mut all);
            names(&binary.right, &mut all);
            if all
                .iter()
                .any(|name| self.rules.compared.contains(&&**name))
            {
                self.force(&range, Kind::Compare, range.start, value);
            }
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_if(&mut self, branch: &'ast ExprIf) {
        if self.rules.guards && branch.else_branch.is_none() && leaves(&branch.then_branch) {
            let mut all = Vec::new();
            alternatives(&branch.cond, &mut all);
            for condition in all {
                let range = part(condition);
                self.force(&range, Kind::Guard, range.start, false);
            }
            self.in_guard = true;
            self.visit_expr(&branch.cond);
            self.in_guard = false;
            self.visit_block(&branch.then_branch);
            return;
        }
        visit::visit_expr_if(self, branch);
    }

    fn visit_expr_try(&mut self, attempt: &'ast ExprTry) {
        let at = part(&attempt.question_token).start;
        // A busy state that was not had needs no end.
        let is_taking = matches!(&*attempt.expr, Expr::MethodCall(call)
            if call.method == "try_soft_busy" || call.method == "try_hard_busy");
        if self.busy_from.is_some_and(|from| from < at) && !is_taking {
            let id = self.point(Kind::Busy, at);
            self.found.put(at, &format!(".leaving_busy({id})"));
        }
        visit::visit_expr_try(self, attempt);
    }

    fn visit_expr_path(&mut self, path: &'ast ExprPath) {
        let range = part(path);
        let Some(last) = path.path.segments.last() else {
            return;
        };
        let is_order = self.rules.orders
            && ORDERS.contains(&&*last.ident.to_string())
            && (path.path.segments.len() == 1 || path.path.segments[0].ident == "Ordering");
        if is_order {
            let id = self.point(Kind::Order, range.start);
            let open = format!("{}::mutant::order({id}, ", self.path);
            self.found.around(&range, &open, ")");
        }
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        // What is asserted is no part of the protocol; what is matched is.
        if mac.path.is_ident("matches") {
            let first = |input: syn::parse::ParseStream<'_>| {
                let expr: Expr = input.parse()?;
                input.parse::<proc_macro2::TokenStream>()?;
                Ok(expr)
            };
            if let Ok(expr) = mac.parse_body_with(first) {
                <Self as Visit<'_>>::visit_expr(self, &expr);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "
        const fn constant(state: u32) -> bool { state == 1 }
        fn all(&self) -> Result<(), Error> {
            debug_assert!(self.is_dead());
            let _guard = self.lock();
            if !check() || self.entry.state() == self.state {
                gather
                    .record(self, va);
            }
            let Some(busy) = page.try_hard_busy() else { return Ok(()) };
            let ours = matches!(self.move_page(&busy)?, true);
            self.word.store(0, Release);
            fence(SeqCst);
            gather.finish(vm);
            vm.retire_frame(pfn);
        }
        #[cfg(test)]
        mod tests {
            fn is_left_out() { fence(SeqCst); }
        }
        ";

    fn rewritten() -> (String, Vec<Point>) {
        let mut points = Vec::new();
        let text = rewrite("crates/vm/src/some.rs", SOURCE, &mut points).unwrap();
        (text, points)
    }

    #[test]
    fn finish_flushes_only_where_gathers_are() {
        let mut points = Vec::new();
        let source = "fn f() { BACKLOG.finish(drop); }";
        let text = rewrite("kernel/vfs/src/some.rs", source, &mut points).unwrap();
        assert!(points.is_empty(), "{text}");
    }

    #[test]
    fn each_point_is_found_once() {
        let (text, points) = rewritten();
        syn::parse_file(&text).unwrap();
        let kinds: Vec<_> = points.iter().map(|point| point.kind.name()).collect();
        let expected = [
            "lock", "check", "compare", "record", "busy", "order", "fence", "flush", "grace",
        ];
        assert_eq!(kinds, expected);
        assert!(
            points
                .iter()
                .enumerate()
                .all(|(n, point)| point.id == n + 1)
        );
        assert_eq!(points[2].place(), "vm/src/some.rs all");
        assert_eq!(points[2].line, 6);
        // Lines stay where they are.
        assert_eq!(text.lines().count(), SOURCE.lines().count());
    }

    #[test]
    fn guards_and_wakes_are_points_of_the_kernel() {
        let source = "
        fn all(&self) -> Result<(), Error> {
            if self.gone || !child.is_zombie() && self.pid == 1 {
                return Err(Error);
            }
            while self.at.is_mountpoint() {
                if let Some(at) = self.next() && at.is_own() { break; }
                if more { self.queue.wake_one(); }
            }
            self.word.store(0, Release);
            self.check_rights(inode)
        }
        ";
        let mut points = Vec::new();
        let text = rewrite("kernel/vfs/src/some.rs", source, &mut points).unwrap();
        syn::parse_file(&text).unwrap();
        for part in [
            "if (self.gone).forced(1, false) || (!child.is_zombie() && self.pid == 1).forced(2, false) {",
            "while (self.at.is_mountpoint()).forced(3, false) {",
            "if let Some(at) = self.next() && (at.is_own()).forced(4, false) { break; }",
            "if more { if !ksync::mutant::is(5) { self.queue.wake_one(); } }",
            "store(0, Release)",
            "(self.check_rights(inode)).forced(6, true)",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(points.len(), 6);
    }

    #[test]
    fn each_kind_is_rewritten_in_its_way() {
        let (text, _) = rewritten();
        for part in [
            "state: u32) -> bool { state == 1 }",
            "debug_assert!(self.is_dead());",
            "self.holding_nothing(1).lock();",
            "if !(check()).forced(2, true) || (self.entry.state() == self.state).forced(3, true) {",
            "if !ksync::mutant::is(4) { gather",
            ".record(self, va); }",
            "self.move_page(&busy).leaving_busy(5)?, true)",
            "store(0, ksync::mutant::order(6, Release));",
            "if !ksync::mutant::is(7) { fence(SeqCst); }",
            "gather.flushing_nothing(8).finish(vm);",
            "vm.without_grace(9).retire_frame(pfn);",
            "fn is_left_out() { fence(SeqCst); }",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
