//! Lists of counters.

/// Makes the enumeration `Counter` and the list of the counters' names and descriptions, `LIST`, from one list.
#[macro_export]
macro_rules! counters {
    ($($name:ident $metric:literal $help:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Counter {
            $(#[doc = $help] $name,)*
        }

        /// Names and descriptions, in the order of [`Counter`].
        const LIST: &[(&str, &str)] = &[$(($metric, $help),)*];
    };
}

#[cfg(test)]
mod tests {
    counters! {
        First "first" "The first one",
        Second "second" "The second one",
    }

    #[test]
    fn names_stand_in_the_order_of_the_counters() {
        let told = [Counter::First, Counter::Second].map(|counter| LIST[counter as usize]);
        assert_eq!(told, [("first", "The first one"), ("second", "The second one")]);
        assert_eq!(LIST.len(), told.len());
    }
}
