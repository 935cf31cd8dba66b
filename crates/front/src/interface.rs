//! The one list of a service's routes, from which its router and its description are made.

/// Makes the described routes of a service and their description from one list: what is asked how, and who answers.
///
/// Before the routes stand what else the description says, and the type of the router's state:
///
/// ```text
/// floe_front::interface! {
///     #[openapi(info(title = "floe hub"))]
///     state Arc<Hub>;
///     get "/healthz" healthz,
///     post "/v1/uploads" uploads::open,
/// }
/// ```
///
/// That makes a function `described`, a type `Description`, and a test that each handler's `#[utoipa::path]` says what the list says.
/// The crate must depend on axum and utoipa.
#[macro_export]
macro_rules! interface {
    (
        #[openapi($($about:tt)*)]
        state $state:ty;
        $($method:ident $path:literal $($handler:ident)::+,)*
    ) => {
        fn described() -> axum::Router<$state> {
            axum::Router::new()$(.route($path, axum::routing::$method($($handler)::+)))*
        }

        /// The interface's description.
        #[derive(utoipa::OpenApi)]
        #[openapi($($about)*, paths($($($handler)::+),*))]
        struct Description;

        #[test]
        fn every_route_is_described_as_it_is_asked() {
            let paths = <Description as utoipa::OpenApi>::openapi().paths.paths;
            $(
                // a description does not say that a name stands for all the rest of a path
                let item = paths.get(&$path.replace("{*", "{"));
                let operation = item.and_then(|item| item.$method.as_ref());
                let answers = operation.and_then(|operation| operation.operation_id.as_deref());
                assert!(
                    answers.is_some_and(|name| stringify!($($handler)::+).ends_with(name)),
                    "{} {}: {answers:?}",
                    stringify!($method),
                    $path
                );
            )*
        }
    };
}
