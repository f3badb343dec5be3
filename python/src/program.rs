//! Programs and their methods, on tensors.

use crate::errors::{OrRaise, raise};
use crate::model::options;
use crate::waiting::lock;
use ptero::{DType, Tensor, TensorInfo};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::PathBuf;
use std::sync::Mutex;

/// A program.
#[pyclass(frozen, module = "ptero._ptero")]
pub(crate) struct Program(ptero::Program);

/// The name, the type and the sizes of a tensor, at most.
type Info = (Option<String>, &'static str, Vec<u64>);

/// An output: its type, its sizes and its bytes.
type Output<'py> = (&'static str, Vec<u64>, Bound<'py, PyBytes>);

/// A graph: the kind and the text of each node, chain by chain.
type Graph = Vec<Vec<(String, String)>>;

fn info(info: TensorInfo) -> Info {
    (info.name, info.dtype.name(), info.shape)
}

#[pymethods]
impl Program {
    /// Opens a program; without a source, that of the included model.
    #[new]
    #[pyo3(signature = (source, device, threads))]
    fn new(py: Python<'_>, source: Option<PathBuf>, device: &str, threads: Option<usize>) -> PyResult<Self> {
        let options = options(device, threads)?;
        let opened = py.detach(|| match source {
            Some(source) => options.open_program(source),
            None => options.included_program(),
        });
        opened.map(Self).or_raise()
    }

    /// Its name: that of the file or checkpoint.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// The names of the methods, without those that only return metadata.
    #[getter]
    fn methods(&self) -> Vec<&str> {
        self.0.methods().collect()
    }

    /// Compiles a method, with a state of its own.
    fn method(&self, py: Python<'_>, name: &str) -> PyResult<Method> {
        let method = py.detach(|| self.0.method(name)).or_raise()?;
        let (inputs, outputs) = (method.inputs(), method.outputs());
        let [inputs, outputs] = [inputs, outputs].map(|infos| infos.into_iter().map(info).collect());
        Ok(Method { method: Mutex::new(method), inputs, outputs })
    }

    /// The graph of a method: the kind and the text of each node, chain by chain.
    fn graph(&self, py: Python<'_>, name: &str) -> Graph {
        py.detach(|| {
            let method = self.0.verified().methods.iter().find(|method| method.name == name);
            let graphs = method.into_iter().flat_map(|method| method.mlx_delegates());
            let chains = graphs.flat_map(|(_, graph)| graph.instruction_chains.iter());
            chains.map(|nodes| nodes.iter().map(|node| (node.name().to_owned(), node.to_string())).collect()).collect()
        })
    }
}

/// A method and the state that its calls share.
#[pyclass(frozen, module = "ptero._ptero")]
pub(crate) struct Method {
    method: Mutex<ptero::Method>,
    /// Its inputs that are tensors.
    #[pyo3(get)]
    inputs: Vec<Info>,
    /// Its outputs that are tensors.
    #[pyo3(get)]
    outputs: Vec<Info>,
}

#[pymethods]
impl Method {
    /// Calls the method on tensors: their types, shapes and bytes.
    fn run<'py>(&self, py: Python<'py>, inputs: Vec<(String, Vec<u64>, Vec<u8>)>) -> PyResult<Vec<Output<'py>>> {
        let tensor = |(dtype, shape, bytes): (String, Vec<u64>, Vec<u8>)| {
            let found = DType::ALL.iter().find(|known| known.name() == dtype);
            let dtype = found.ok_or_else(|| raise("CallError", format!("there is no element type `{dtype}`")))?;
            Tensor::new(*dtype, &shape, bytes).or_raise()
        };
        let inputs = inputs.into_iter().map(tensor).collect::<PyResult<Vec<_>>>()?;
        let outputs = py.detach(|| lock(&self.method).run(inputs)).or_raise()?;
        let output =
            |tensor: &Tensor| (tensor.dtype().name(), tensor.shape().to_vec(), PyBytes::new(py, tensor.bytes()));
        Ok(outputs.iter().map(output).collect())
    }
}
