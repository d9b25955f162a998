use core::alloc::Layout;
use std::vec::Vec;

use super::class::{CACHE, Class, MAX_OBJECTS, MAX_SIZE};
use super::{PAGE_SIZE, order_of};

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).expect("a valid layout")
}

#[test]
fn sizes_are_powers_of_two_and_half_steps() {
    let sizes: Vec<usize> = Class::all().map(Class::size).collect();
    assert_eq!(
        sizes,
        [
            16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072
        ]
    );
}

#[test]
fn a_layout_gets_the_smallest_class_that_serves_it() {
    for align in (0..13).map(|log| 1 << log) {
        for size in (1..=2 * PAGE_SIZE).step_by(if cfg!(miri) { 131 } else { 1 }) {
            // An object's alignment is that of its size, up to a page.
            let serves = |class: &Class| class.size() >= size && class.size().is_multiple_of(align);
            let expected = Class::all().find(serves);
            assert_eq!(
                Class::of(layout(size, align)),
                expected,
                "size {size}, alignment {align}"
            );
        }
    }
}

#[test]
fn slabs_waste_little_and_fit_their_marks() {
    for class in Class::all() {
        let bytes = PAGE_SIZE << class.order();
        let objects = class.objects(class.order());
        assert!((4..=MAX_OBJECTS).contains(&objects));
        assert!(bytes - objects * class.size() <= bytes / 8, "{class:?}");
        assert!(
            class.objects(0) >= 1,
            "a single page serves when memory is short"
        );
        assert!((2..=CACHE).contains(&class.cached()));
    }
}

#[test]
fn large_sizes_become_orders() {
    let order = |size, align| order_of(layout(size, align));
    assert_eq!(order(MAX_SIZE + 1, 8), 0);
    assert_eq!(order(PAGE_SIZE, 8), 0);
    assert_eq!(order(PAGE_SIZE + 1, 8), 1);
    assert_eq!(order(5 * PAGE_SIZE, 8), 3);
    assert_eq!(order(8, 4 * PAGE_SIZE), 2);
    assert_eq!(order(4 << 20, 8), 10);
}

#[test]
fn a_place_is_its_offset_divided() {
    for class in Class::all() {
        for order in [0, class.order()] {
            let objects = (PAGE_SIZE << order) / class.size();
            assert_eq!(class.objects(order), objects);
            (0..objects).for_each(|place| {
                assert_eq!(class.spacing().place(place * class.size()) as usize, place)
            });
        }
    }
}

#[test]
#[should_panic(expected = "no heap object starts here")]
fn a_pointer_into_an_object_is_noticed() {
    let class = Class::of(layout(96, 8)).expect("a class");
    class.spacing().place(96 * 5 + 8);
}
