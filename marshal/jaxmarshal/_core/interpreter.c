/* A module without contents that only the main interpreter of a process can import.

   `jaxmarshal/__init__.py` imports it before anything else: in a second interpreter, importing JAX
   would not raise an error but may end the process. It declares itself fit for every kind of
   interpreter, because it has no state; otherwise Python would refuse it in words of its own. */
#include "jaxmarshal/compat.h"

static int jm_refuse_subinterpreter(PyObject *module) {
    (void)module;
    if (PyInterpreterState_Get() == PyInterpreterState_Main()) {
        return 0;
    }
    PyErr_SetString(
        PyExc_ImportError,
        "jaxmarshal cannot be imported in a subinterpreter: like JAX, it serves one interpreter of "
        "a process. Use the main interpreter, or another process");
    return -1;
}

static PyModuleDef_Slot jm_slots[] = {
    {Py_mod_exec, (void *)jm_refuse_subinterpreter},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef jm_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "jaxmarshal._core.interpreter",
    .m_doc = "Can be imported in the main interpreter only.",
    .m_slots = jm_slots,
};

PyMODINIT_FUNC PyInit_interpreter(void) {
    return PyModuleDef_Init(&jm_module);
}
