//! The layout of the kernel's types, from its debug information.

use anyhow::{Context, Result};
use gimli::{AttributeValue, DwAt, EndianSlice, LittleEndian, Reader};
use object::{Object, ObjectSection};
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

/// Identifies a type: its offset in the debug information.
type Id = usize;

#[derive(Default)]
struct Type {
    size: u64,
    /// Name, offset and type of each field.
    fields: Vec<(String, u64, Id)>,
    /// The element type of an array.
    element: Option<Id>,
}

/// All types.
#[derive(Default)]
pub struct Types {
    types: HashMap<Id, Type>,
    by_name: HashMap<String, Id>,
}

impl Types {
    /// Reads a kernel's debug information; if there is none, no type is known.
    pub fn read(kernel: &Path) -> Result<Types> {
        let bytes = std::fs::read(kernel)?;
        let file = object::File::parse(&*bytes)?;
        let load = |id: gimli::SectionId| -> Result<Cow<[u8]>, gimli::Error> {
            let section = file.section_by_name(id.name());
            Ok(section
                .and_then(|s| s.uncompressed_data().ok())
                .unwrap_or_default())
        };
        let sections = gimli::DwarfSections::load(load)?;
        let dwarf = sections.borrow(|section| EndianSlice::new(section, LittleEndian));
        let mut types = Types::default();
        let mut units = dwarf.units();
        while let Some(header) = units.next()? {
            types.unit(&dwarf, &dwarf.unit(header)?)?;
        }
        Ok(types)
    }

    fn unit<R: Reader<Offset = usize>>(
        &mut self,
        dwarf: &gimli::Dwarf<R>,
        unit: &gimli::Unit<R>,
    ) -> Result<()> {
        let base = unit
            .header
            .debug_info_offset()
            .context("a unit without a place")?
            .0;
        // The names of the modules around an entry, and the type that its children belong to.
        let mut around: Vec<(String, Option<Id>)> = Vec::new();
        let mut entries = unit.entries();
        while let Some(entry) = entries.next_dfs()? {
            let depth = usize::try_from(entry.depth()).unwrap_or(0);
            around.truncate(depth);
            let name = match entry.attr_value(gimli::DW_AT_name) {
                Some(value) => dwarf
                    .attr_string(unit, value)?
                    .to_string_lossy()?
                    .into_owned(),
                None => String::new(),
            };
            let path = || {
                let outer = around.iter().map(|(name, _)| name.as_str());
                let parts: Vec<&str> = outer.filter(|p| !p.is_empty()).chain([&*name]).collect();
                parts.join("::")
            };
            let owner = around.last().and_then(|(_, owner)| *owner);
            let next = self.entry(entry, base, owner, &name, path);
            around.resize(depth, (String::new(), None));
            around.push(next);
        }
        Ok(())
    }

    /// Takes one entry in, which belongs to the type `owner`. Returns what its children are to know: the part of their path
    /// that it is, and the type that they belong to.
    fn entry<R: Reader<Offset = usize>>(
        &mut self,
        entry: &gimli::DebuggingInformationEntry<R>,
        base: usize,
        owner: Option<Id>,
        name: &str,
        path: impl Fn() -> String,
    ) -> (String, Option<Id>) {
        let id = base + entry.offset().0;
        let number = |at: DwAt| entry.attr_value(at).and_then(|v| v.udata_value());
        let target = || match entry.attr_value(gimli::DW_AT_type) {
            Some(AttributeValue::UnitRef(offset)) => Some(base + offset.0),
            Some(AttributeValue::DebugInfoRef(offset)) => Some(offset.0),
            _ => None,
        };
        match entry.tag() {
            gimli::DW_TAG_namespace => return (name.to_owned(), None),
            gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type => {
                let size = number(gimli::DW_AT_byte_size).unwrap_or(0);
                self.types.entry(id).or_default().size = size;
                self.by_name.entry(plain(&path())).or_insert(id);
                return (name.to_owned(), Some(id));
            }
            gimli::DW_TAG_base_type
            | gimli::DW_TAG_pointer_type
            | gimli::DW_TAG_enumeration_type => {
                let size = number(gimli::DW_AT_byte_size).unwrap_or(8);
                self.types.entry(id).or_default().size = size;
            }
            gimli::DW_TAG_array_type => {
                self.types.entry(id).or_default().element = target();
                return (String::new(), Some(id));
            }
            gimli::DW_TAG_subrange_type => {
                if let Some(array) = owner {
                    let count = number(gimli::DW_AT_count).unwrap_or(0);
                    // The size is known once elements are: kept as a count until then, see `size_of`.
                    self.types.entry(array).or_default().size = count;
                }
            }
            gimli::DW_TAG_member => {
                if let (Some(owner), Some(target)) = (owner, target()) {
                    let offset = number(gimli::DW_AT_data_member_location).unwrap_or(0);
                    let owner = self.types.entry(owner).or_default();
                    owner.fields.push((name.to_owned(), offset, target));
                }
            }
            _ => {}
        }
        (String::new(), None)
    }

    fn size_of(&self, id: Id) -> u64 {
        match self.types.get(&id) {
            Some(Type {
                element: Some(element),
                size: count,
                ..
            }) => count * self.size_of(*element),
            Some(known) => known.size,
            None => 0,
        }
    }

    /// The size of a type, if it is known.
    pub fn size(&self, name: &str) -> Option<u64> {
        let id = self.by_name.get(&plain(name))?;
        Some(self.size_of(*id)).filter(|&size| size > 0)
    }

    /// A type's name and the field at `offset`.
    pub fn field(&self, name: &str, mut offset: u64) -> String {
        let mut out = last_part(name);
        let Some(&(mut id)) = self.by_name.get(&plain(name)) else {
            return format!("{out} +{offset}");
        };
        while let Some(known) = self.types.get(&id) {
            if let Some(element) = known.element {
                let size = self.size_of(element).max(1);
                out += "[]";
                (id, offset) = (element, offset % size);
                continue;
            }
            let holds = |(_, at, of): &&(String, u64, Id)| {
                (*at..*at + self.size_of(*of).max(1)).contains(&offset)
            };
            let Some((field, at, of)) = known.fields.iter().find(holds) else {
                break;
            };
            // The field of a wrapper type has no telling name.
            if !matches!(
                &**field,
                "v" | "value" | "__0" | "data" | "pointer" | "inner" | "raw" | "word"
            ) {
                out += &format!(".{field}");
            }
            (id, offset) = (*of, offset - at);
        }
        out
    }
}

/// A type's name without blanks and default allocators, in which different sources of names differ.
fn plain(name: &str) -> String {
    name.replace(' ', "").replace(",alloc::alloc::Global", "")
}

/// The last part of a path, and of the paths in its generic arguments.
fn last_part(name: &str) -> String {
    let mut out = String::new();
    let mut word = String::new();
    for c in name.chars() {
        match c {
            ':' => word.clear(),
            c if c.is_alphanumeric() || c == '_' => word.push(c),
            c => {
                out += &std::mem::take(&mut word);
                out.push(c);
            }
        }
    }
    out + &word
}
