"""Facts and words of the recipe's own questions, each with the part that it belongs to."""

from __future__ import annotations

from random import Random

_COUNTRIES = """\
France Paris Europe; Germany Berlin Europe; Spain Madrid Europe; Portugal Lisbon Europe; Italy Rome Europe;
Greece Athens Europe; Austria Vienna Europe; Poland Warsaw Europe; Hungary Budapest Europe;
Sweden Stockholm Europe; Norway Oslo Europe; Finland Helsinki Europe; Denmark Copenhagen Europe;
Ireland Dublin Europe; Belgium Brussels Europe; Switzerland Bern Europe; Romania Bucharest Europe;
Bulgaria Sofia Europe; Croatia Zagreb Europe; Serbia Belgrade Europe; Ukraine Kyiv Europe; Latvia Riga Europe;
Lithuania Vilnius Europe; Estonia Tallinn Europe; Iceland Reykjavik Europe; Slovenia Ljubljana Europe;
Slovakia Bratislava Europe; Albania Tirana Europe; Malta Valletta Europe; Belarus Minsk Europe;
Japan Tokyo Asia; China Beijing Asia; India Delhi Asia; Nepal Kathmandu Asia; Thailand Bangkok Asia;
Vietnam Hanoi Asia; Indonesia Jakarta Asia; Philippines Manila Asia; Mongolia Ulaanbaatar Asia; Iran Tehran Asia;
Iraq Baghdad Asia; Syria Damascus Asia; Lebanon Beirut Asia; Jordan Amman Asia; Qatar Doha Asia;
Oman Muscat Asia; Yemen Sanaa Asia; Pakistan Islamabad Asia; Bangladesh Dhaka Asia; Afghanistan Kabul Asia;
Bhutan Thimphu Asia; Cambodia Phnom-Penh Asia; Laos Vientiane Asia; Uzbekistan Tashkent Asia;
Egypt Cairo Africa; Kenya Nairobi Africa; Ghana Accra Africa; Nigeria Abuja Africa; Senegal Dakar Africa;
Morocco Rabat Africa; Algeria Algiers Africa; Tunisia Tunis Africa; Libya Tripoli Africa; Sudan Khartoum Africa;
Uganda Kampala Africa; Zambia Lusaka Africa; Zimbabwe Harare Africa; Angola Luanda Africa; Mali Bamako Africa;
Niger Niamey Africa; Rwanda Kigali Africa; Somalia Mogadishu Africa; Namibia Windhoek Africa;
Mozambique Maputo Africa; Madagascar Antananarivo Africa; Botswana Gaborone Africa; Togo Lome Africa;
Peru Lima South-America; Chile Santiago South-America; Argentina Buenos-Aires South-America;
Brazil Brasilia South-America; Bolivia Sucre South-America; Ecuador Quito South-America;
Colombia Bogota South-America; Venezuela Caracas South-America; Uruguay Montevideo South-America;
Paraguay Asuncion South-America; Guyana Georgetown South-America; Suriname Paramaribo South-America;
Canada Ottawa North-America; Cuba Havana North-America; Jamaica Kingston North-America; Haiti Port-au-Prince North-America;
Panama Panama-City North-America; Honduras Tegucigalpa North-America; Nicaragua Managua North-America;
Bahamas Nassau North-America; Australia Canberra Oceania; Fiji Suva Oceania; Samoa Apia Oceania"""
_SYMBOLS = """\
hydrogen H; helium He; lithium Li; carbon C; nitrogen N; oxygen O; fluorine F; neon Ne; sodium Na; magnesium Mg;
aluminium Al; silicon Si; phosphorus P; sulfur S; chlorine Cl; argon Ar; potassium K; calcium Ca; iron Fe; nickel Ni;
copper Cu; zinc Zn; silver Ag; tin Sn; gold Au; mercury Hg; lead Pb; uranium U; iodine I; platinum Pt"""
_KINDS = """\
apple pear plum cherry banana grape mango peach lemon orange melon fig
dog cat horse cow sheep lion tiger rabbit goat wolf bear fox
hammer saw drill chisel pliers wrench screwdriver axe file shovel rake spade
red blue green yellow purple brown black white grey pink scarlet violet
chair table sofa bed desk shelf bench stool cupboard wardrobe dresser armchair
car bus train bicycle lorry tram boat plane scooter van motorcycle ship
shirt trousers coat sock glove scarf hat skirt dress jacket sweater vest
violin piano guitar flute trumpet drum cello clarinet harp trombone oboe organ
arm leg hand foot nose ear knee elbow shoulder chin finger neck
rain snow hail fog wind storm thunder frost sleet mist drizzle lightning
baker doctor teacher nurse pilot farmer lawyer plumber dentist tailor butcher judge
rose tulip daisy lily orchid crocus sunflower daffodil poppy iris marigold carnation"""
PARTS = ("train", "tune", "test")
Fact = tuple[str, str]


def _deal(items: list[str], seed: str) -> dict[str, list[str]]:
    """Half to train on, a quarter to tune on, a quarter to test on."""
    shuffled = Random(seed).sample(items, len(items))
    half, quarter = len(items) // 2, len(items) // 4
    return {
        "train": shuffled[: len(items) - 2 * quarter] if half else shuffled,
        "tune": shuffled[-2 * quarter : -quarter],
        "test": shuffled[-quarter:],
    }


def capitals(part: str) -> list[Fact]:
    """Countries and their capitals of that part; those whose capital is one word."""
    rows = [row.split() for row in _COUNTRIES.replace("\n", " ").split(";")]
    known = {country: capital for country, capital, _ in rows if "-" not in capital}
    return [(name, known[name]) for name in _deal(sorted(known), "capitals")[part]]


def continents(part: str) -> list[Fact]:
    """Countries and their continents of that part; a country is of the same part in both."""
    rows = [row.split() for row in _COUNTRIES.replace("\n", " ").split(";")]
    known = {country: continent.replace("-", " ") for country, _, continent in rows}
    return [(name, known[name]) for name, _ in capitals(part)]


def symbols(part: str) -> list[Fact]:
    """Chemical elements and their symbols of that part."""
    known: dict[str, str] = {}
    for pair in _SYMBOLS.replace("\n", " ").split(";"):
        name, symbol = pair.split()
        known[name] = symbol
    return [(name, known[name]) for name in _deal(sorted(known), "symbols")[part]]


def kinds(part: str) -> list[list[str]]:
    """Words of one kind each; a word is of one part."""
    words = [line.split() for line in _KINDS.splitlines()]
    return [_deal(line, f"kind {at}")[part] for at, line in enumerate(words)]
