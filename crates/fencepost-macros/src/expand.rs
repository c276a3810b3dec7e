//! From the function to the function under its lock.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Error, Expr, FnArg, ItemFn, Pat, Result, ReturnType, Signature, TypeImplTrait, parse_quote, parse2,
};

use crate::options::{Kind, Options};

pub(crate) fn locked(options: TokenStream, function: TokenStream) -> Result<TokenStream> {
    let options: Options = parse2(options)?;
    let wrong = |error: Error| Error::new(error.span(), "`locked` stands before a function with a body");
    let ItemFn { attrs, vis, sig, block } = parse2(function).map_err(wrong)?;
    let ReturnType::Type(_, output) = &sig.output else {
        let rule = "a locked function returns a Result whose error implements From<fencepost::Error>";
        return Err(Error::new(sig.ident.span(), rule));
    };
    let client = client(&options, &sig)?;
    let Options { name, values, kind, calls, on_busy, view, .. } = &options;
    let view = view.as_ref().map_or_else(|| quote!(_), |view| quote!(#view));
    let name = quote!(&::std::format!(#name #(, #values)*));
    let (lock, request, try_request) = match kind {
        Kind::Mutex => (quote!(mutex(#name)), quote!(lock), quote!(try_lock)),
        Kind::Read => (quote!(rwlock(#name)), quote!(read), quote!(try_read)),
        Kind::Write => (quote!(rwlock(#name)), quote!(write), quote!(try_write)),
        Kind::Permits(of) => (quote!(semaphore(#name, #of)), quote!(acquire), quote!(try_acquire)),
    };
    let request = if on_busy.is_some() { try_request } else { request };
    // An error that does not convert is shown at the type that lacks the conversion.
    let or_fail = quote_spanned!(output.span()=> ?);
    // Tells the type of the body, for each `?` in it.
    let typed = if has_impl(output) {
        quote!()
    } else {
        quote! {
            #[allow(unreachable_code, clippy::diverging_sub_expression, clippy::empty_loop)]
            if false {
                let __fencepost_type: #output = loop {};
                return __fencepost_type;
            }
        }
    };
    let statements = &block.stmts;
    let answer = quote!(__fencepost_lock.#request() #(#calls)*);
    let answer = match sig.asyncness {
        Some(_) => quote!(#answer.run(|#view| async move { #typed #(#statements)* }).await),
        None => quote! {
            ::fencepost::Block::block(
                #answer.run(|#view| async move { (move || -> #output { #(#statements)* })() })
            )
        },
    };
    let done = quote! {
        let __fencepost_lock = (#client).#lock #or_fail;
        let __fencepost_answer = #answer #or_fail;
    };
    let answer = match on_busy {
        Some(on_busy) => quote! {
            match __fencepost_answer {
                ::core::option::Option::Some(answer) => answer,
                ::core::option::Option::None => #on_busy,
            }
        },
        None => quote!(__fencepost_answer),
    };
    Ok(quote! {
        #(#attrs)*
        #vis #sig {
            #done
            #answer
        }
    })
}

/// The expression of the client.
fn client(options: &Options, sig: &Signature) -> Result<Expr> {
    if let Some(locks) = &options.locks {
        return Ok(locks.clone());
    }
    let is_named = |argument: &&FnArg| match argument {
        FnArg::Typed(typed) => matches!(&*typed.pat, Pat::Ident(name) if name.ident == "locks"),
        FnArg::Receiver(_) => false,
    };
    if sig.inputs.iter().any(|argument| is_named(&argument)) {
        return Ok(parse_quote!(locks));
    }
    if sig.receiver().is_some() {
        return Ok(parse_quote!(self.locks));
    }
    let rule = "the function has no argument `locks`; add one, or name the client by `locks = EXPR`";
    Err(Error::new(sig.ident.span(), rule))
}

/// Whether a type has `impl Trait` in it, which no variable can have.
fn has_impl(output: &syn::Type) -> bool {
    struct Finds(bool);
    impl<'ast> Visit<'ast> for Finds {
        fn visit_type_impl_trait(&mut self, found: &'ast TypeImplTrait) {
            self.0 = true;
            visit::visit_type_impl_trait(self, found);
        }
    }
    let mut finds = Finds(false);
    finds.visit_type(output);
    finds.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "async fn pay(locks: &Locks, id: u64) -> Result<()> { Ok(()) }";

    fn message(options: &str, function: &str) -> String {
        let expanded = locked(options.parse().unwrap(), function.parse().unwrap());
        expanded.map_or_else(|error| error.to_string(), |_| String::new())
    }

    #[test]
    fn wrong_arguments_are_explained() {
        for (options, expected) in [
            ("", "the first argument is the lock's name"),
            ("wait = \"3s\"", "the first argument is the lock's name"),
            ("\"\"", "at least one character"),
            ("\"a\", patience = 3", "there is no option `patience`; the options are wait, on_busy"),
            ("\"a\", mode = exclusive", "`mode` is read or write"),
            ("\"a\", mode = read, permits = 3", "`mode` or `permits`, not both"),
            ("\"a\", unfair = 1", "`unfair` is true or false"),
            ("\"a\", wait = \"3 sec\"", "a number and its unit, such as \"500ms\""),
            ("\"a\", wait = 3", "a number and its unit"),
            ("\"a\", wait = \"18446744073709551615h\"", "a number and its unit"),
            ("\"a\", wait = \"1s\", wait = \"2s\"", "`wait` is given twice"),
            ("\"a{}\", wait = \"1s\", id", "before the options"),
            ("\"a\", view = 3", "`view` is a name"),
            (
                "\"order/{order.id}\"",
                "braces take the name of an argument alone; write #[locked(\"order/{}\", order.id)]",
            ),
            (
                "\"{{a}}/{id}/{order.shop.id:03}/{self.id}\"",
                "write #[locked(\"{{a}}/{}/{:03}/{}\", id, order.shop.id, self.id)]",
            ),
            ("\"{}/{order.id}\", id", "write #[locked(\"{}/{}\", id, order.id)]"),
        ] {
            let message = message(options, GOOD);
            assert!(message.contains(expected), "{options}: {message:?}");
        }
    }

    #[test]
    fn wrong_functions_are_explained() {
        for (function, expected) in [
            ("async fn pay(locks: &Locks) {}", "returns a Result"),
            ("async fn pay(id: u64) -> Result<()> { Ok(()) }", "no argument `locks`"),
            ("struct Pay;", "before a function"),
        ] {
            let message = message("\"a\"", function);
            assert!(message.contains(expected), "{function}: {message:?}");
        }
    }

    #[test]
    fn good_ones_are_expanded() {
        for options in [
            "\"a\", permits = 3, max_hold = \"1m\"",
            "\"a\"",
            "\"a{}\", id + 1, wait = \"3s\", on_busy = Ok(()),",
            "\"a\", wait = LIMIT, locks = x",
        ] {
            assert_eq!(message(options, GOOD), "");
        }
        assert_eq!(
            message("\"a\"", "fn pay(&self) -> Result<()> { Ok(()) }"),
            "",
            "the client is self.locks"
        );
    }
}
