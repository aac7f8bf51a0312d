from typing import Any

class Recording: ...

note_fastpath_data: Any
