"""The word banks that the generated text is made of: plain data, one bank a slot name."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(" ".join(part.split()) for part in text.split("/"))


FIRST_NAMES = _words(
    """Ada Agnes Albin Alma Anselm Arlo Astrid Basil Beatrix Bram Brigid Caspar Cecily Clement Cora
    Cyrus Dagny Delia Edmund Edith Elias Elspeth Emil Esther Felix Fern Flora Gideon Greta Hanna
    Hugo Ida Imre Ines Iris Ivo Jonas Judith Karin Lars Lena Leopold Lorna Lucian Mabel Magnus
    Mara Marius Matilda Miles Nadia Nestor Nora Olive Oskar Petra Philippa Quentin Ralf Rosalind
    Ruben Sabine Selma Silas Solveig Stellan Tamsin Thea Tobias Una Verena Viktor Wanda Wilfred
    Xenia Yvette Zelda"""
)
NAME_STARTS = _words(
    """Ald Ash Bar Bel Bram Bren Cald Car Cor Crow Dar Dun Eld Ever Fal Fen Gar Glen Hal Har Hart
    Hol Kel Kings Lang Lin Lor Mar Mer Mill Nor Oak Or Pen Quin Rav Red Row Sal Sel Stan Stor
    Tarn Thorn Tor Tren Ul Vel Wald Wel Win Yar"""
)
SURNAME_ENDS = _words(
    """by croft den dale ell er field ford gate grave ham hurst ing ison land ley lock man mere
    more ner ridge ris sen stead ston ter ton well wick win wood worth"""
)
PLACE_ENDS = _words(
    """bourne bridge burgh bury castle combe cross fell firth haven holm moor mouth point pool port
    quay rock shaw stoke strand thorpe vale water wyke"""
)
PLACE_QUALIFIERS = (
    "",
    "",
    "",
    "Great ",
    "Little ",
    "Lower ",
    "Upper ",
    "New ",
    "Old ",
    "East ",
    "West ",
    "High ",
)

BANKS: dict[str, tuple[str, ...]] = {
    "adj": _words(
        """amber ancient bitter brisk broad bronze careful cautious clumsy cobalt copper crooked
        curious dappled distant dusty earnest eager faded faint fierce formal frayed gentle gilded
        grave hollow humble idle ivory jagged keen lively lonely marble mellow modest muted narrow
        noble northern pale patient plain polished quiet ragged rapid rough rusted scarlet secret
        silent silver slender solemn southern stubborn sturdy subtle sudden tender tidy velvet
        violet weary wooden woven"""
    ),
    "noun": _words(
        """anchor apple archive atlas ballad barge basket beacon bell blanket bottle bracket bridge
        bucket button candle canvas carriage cellar chapel chart chimney clock compass cottage
        cradle crane curtain drawer engine feather ferry fiddle fountain furnace garden glove
        granary hammer harbor hinge kettle ladder lantern ledger letter loom mantle market mirror
        mosaic needle orchard paddle parcel pillar pocket pulley quarry ribbon saddle satchel
        shutter signal spindle stable staircase teapot tower trumpet tunnel valley violin wagon
        whistle window"""
    ),
    "job": _phrases(
        """novelist/ceramicist/composer/botanist/engraver/surveyor/bookbinder/watchmaker/essayist/
        cartographer/playwright/chemist/printmaker/violinist/geologist/mathematician/architect/
        journalist/sculptor/astronomer"""
    ),
    "work_kind": _phrases(
        """novel/stage play/verse cycle/opera/short film/radio drama/travel memoir/chamber suite/
        mystery serial/ballet"""
    ),
    "topic": _phrases(
        """soil drainage/river transport/paper making/tide tables/glass furnaces/rural schools/
        wool prices/bridge design/seed storage/star catalogues/canal tolls/forest fires/choral music/
        bread ovens/map projection/lamp oil/harbour dredging/bee keeping/letter sorting/roof tiles/
        coastal fog/market law/stone dressing/ferry timetables"""
    ),
    "manner": _phrases(
        """without hurry/at great expense/in two short stages/with some reluctance/despite the weather/
        against advice/over several winters/in full view of the town/by the usual methods/
        with borrowed tools/for reasons nobody wrote down/to general surprise/after long debate/
        with the help of neighbours"""
    ),
    "time": _phrases(
        """one wet morning/late in the season/before the first frost/on the eve of the fair/
        during the long drought/at the turn of the year/shortly after noon/when the tide was out/
        in the last week of autumn/between two storms/long before dawn/on a market day"""
    ),
    "verb": _phrases(
        """repaired/measured/examined/abandoned/painted/carried off/described/catalogued/guarded/ignored/
        borrowed/inspected/polished/admired/weighed/moved/restored/sketched/mended/studied/returned/
        photographed"""
    ),
    "feeling": _phrases(
        """a kind of relief/no regret at all/more hope than sense/an old unease/open delight/mild alarm/
        quiet pride/some embarrassment/deep suspicion/unexpected calm"""
    ),
    "object": _phrases(
        """sealed letter/brass key/pearl brooch/folded map/ivory flute/blue notebook/silver thimble/
        amber ring/painted box/leather purse/glass marble/signed contract/pocket watch/wax cylinder"""
    ),
    "hideout": _phrases(
        """beneath the third stair of the granary/behind the loose brick in the bakehouse/
        inside the broken church organ/under the floor of the ferry office/
        in the hollow of the split oak/at the bottom of the flour barrel/
        behind the mirror in the dressing room/inside the lining of a grey coat/
        on the roof beam of the boathouse/in the false drawer of the writing desk/
        under the stone lion by the well/between the pages of the parish register"""
    ),
    "measure": _phrases(
        """agreement/recall/precision/coverage/word accuracy/mean error/throughput/label noise/
        calibration error"""
    ),
    "source": _phrases(
        """court transcripts/school essays/ship logs/seed catalogues/radio interviews/hotel reviews/
        patent abstracts/cookery columns/hospital letters/railway notices/parish newsletters/
        museum labels"""
    ),
    "model_part": _phrases(
        """encoder/tagger/ranking layer/gating unit/decoder/tokeniser/sampling step/alignment loss/
        memory module/span classifier/pointer network/reranker"""
    ),
    "agency": _phrases(
        """Office of Harbour Safety/Bureau of Inland Freight/Water Records Agency/Rural Lending Service/
        Department of Public Archives/Forest Roads Administration/Grain Inspection Board/
        Coastal Survey Office"""
    ),
    "action": _phrases(
        """update its risk register/verify contractor invoices/publish inspection results/
        train regional staff/test its backup systems/reconcile grant balances/review expired permits/
        document site visits/report delays to the ministry/collect complete cost data/
        set measurable targets/replace its paper forms"""
    ),
    "program": _phrases(
        """levee repair/rural clinic/freight permit/school meal/well testing/seed loan/archive transfer/
        bridge inspection/storm shelter/ferry subsidy/land registry/water meter"""
    ),
    "role": _phrases(
        """Project Manager/Designer/Marketing/Engineer/Accountant/Chair/Researcher/Secretary/Archivist/
        Planner"""
    ),
    "product": _phrases(
        """casing/battery/packaging/menu layout/warranty/price tag/power switch/display/carrying strap/
        manual/charging dock/colour scheme/test schedule/supplier contract/launch date/call centre/
        keypad/speaker/logo/budget"""
    ),
    "decision": _phrases(
        """be made of recycled rubber/be dropped from the first release/be handled by an outside firm/
        stay exactly as it is/be redesigned before spring/be tested with twenty users/
        cost no more than four euros/be moved to the second page/come in three sizes/
        be reviewed again in June/carry a two year guarantee/be bought from the northern supplier/
        be simplified to a single step/be shared with the sister project"""
    ),
    "reason": _phrases(
        """the budget is fixed/users asked for it twice/the older version kept breaking/
        nobody could find a cheaper way/the lawyers insisted/it saves a week of work/
        the trial went badly/the factory is already prepared/it reads better in daylight/
        the competitor does the same/the survey was unanimous/time is short"""
    ),
    "event": _phrases(
        """warehouse fire/bridge collapse/river flood/train derailment/harbour spill/mine cave-in/
        ferry grounding/gas leak/hail storm/dam breach"""
    ),
    "weekday": _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
    "errand": _phrases(
        """pick up the cake/return the library books/feed the cat/buy concert tickets/fix the bicycle/
        call the landlord/book a table/collect the parcel/water the plants/print the posters/
        bring the tent/walk the dog"""
    ),
    "spot": _phrases(
        """the train station/the old cinema/the river cafe/the sports hall/the corner bakery/
        the city library/the north gate/the bus stop/the flower market/the school gate/the ice rink/
        the pool"""
    ),
    "river": _phrases("Aldra/Brisk/Carrow/Dunmere/Esker/Fenlow/Garrick/Hesper/Isen/Jarrow/Kestle/Lorne/Morwen/Nesk"),
}
